// Why two greedy texts of one prompt differ: the token at which they part, and how close it was.

import { ask } from "./stream.js";

const TOPS = 5;
export const TIE = 0.001, NEAR = 0.25; // differences of logits that rounding makes in float32, and in anything else

/** Ask for the text of plain decoding again, with the target's log-probabilities; see `parting`. */
export async function explain(path, body, on, off) {
  const chat = path.endsWith("chat/completions");
  const asked = {
    ...body, stream: false, stream_options: undefined, speculative: false, max_tokens: off.tokens + 1,
    ignore_eos: true, skip_special_tokens: false, // what ends a text is a token, too
    ...(chat ? { logprobs: true, top_logprobs: TOPS } : { logprobs: TOPS }),
  };
  const [choice] = (await (await ask(path, { body: asked })).json()).choices;
  return parting(chat ? messages(choice.logprobs.content) : columns(choice), on.text, off.text);
}

/** The tokens of a chat: {token, text, logprob, tops}, where `text` is what each adds to the text. */
function messages(content) {
  const decoder = new TextDecoder(); // a character may have several tokens
  return content.map(({ token, bytes, logprob, top_logprobs: tops }) =>
    ({ token, text: decoder.decode(new Uint8Array(bytes), { stream: true }), logprob, tops }));
}

/** The same of a plain completion. */
function columns({ text, logprobs: { tokens, token_logprobs: scores, top_logprobs: tops, text_offset: begins } }) {
  return tokens.map((token, i) => ({
    token, text: text.slice(begins[i], begins[i + 1]), logprob: scores[i],
    tops: Object.entries(tops[i]).map(([other, logprob]) => ({ token: other, logprob })),
  }));
}

/**
 * Where two texts part, by the tokens of the second: {place, plain, drafted, gap}; `gap` is the difference of
 * the two logits, `drafted` null if that token is none of the likely ones. Null if it cannot be told.
 */
export function parting(entries, on, off) {
  let begin = 0;
  for (const [i, entry] of entries.entries()) {
    const text = begin ? entry.text : entry.text.trimStart(); // the first space of a text may be left out
    if (off.startsWith(text, begin) && on.startsWith(text, begin) && begin + text.length <= off.length) {
      begin += text.length;
      continue;
    }
    const others = entry.tops.filter((top) => top.token !== entry.token);
    const ended = on.length === begin; // by a token that is not in the text
    const other = others.find((top) => ended ? !off.startsWith(top.token, begin) : on.startsWith(top.token, begin));
    const logprob = (other ?? others.at(-1))?.logprob;
    if (logprob === undefined) return null;
    return { place: i + 1, plain: entry.token, drafted: other?.token ?? null, gap: entry.logprob - logprob };
  }
  return null;
}

/** What a parting means: its kind for the page, and in words. */
export function judged(found) {
  if (!found) return { kind: "bad", said: "Asked again, plain decoding wrote another text: which token differs is not known." };
  const { place, plain, drafted, gap } = found;
  const quoted = (text) => `\u201c${text}\u201d`;
  const size = gap < 1e-5 ? "less than 0.00001" : String(Number(gap.toPrecision(2)));
  const other = drafted === null ? `a token that is not among its ${TOPS} most likely ones` : quoted(drafted);
  const by = drafted === null ? `more than ${size}` : size;
  const what = `They part at token ${place}: plain decoding wrote ${quoted(plain)}, with drafts it is ${other}. The target's logits of the two differ by ${by}.`;
  if (gap <= TIE) return { kind: "tie", said: `${what} That is a tie, which rounding decides.` };
  if (gap <= NEAR && drafted !== null) return { kind: "tie", said: `${what} That is close to a tie: half precision and quantised weights round as much, float32 does not.` };
  return { kind: "bad", said: `${what} That is more than rounding explains: please report it with its prompt.` };
}
