// Requests to the server, and server-sent events over fetch, which can send a key where EventSource cannot.

let key = ""; // in this tab's memory only

export function setKey(given) {
  key = given;
}

/** An answer of the server; an error has its status and the server's own words. */
export async function ask(path, { body, signal } = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.ok) return answer;
  const error = new Error(await said(answer));
  error.status = answer.status;
  throw error;
}

async function said(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered with status ${answer.status}`;
  }
}

/** The data of each event, as JSON; ends at [DONE] or with the connection. */
export async function* events(path, options) {
  const answer = await ask(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data: "));
        const data = lines.map((line) => line.slice(6)).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
