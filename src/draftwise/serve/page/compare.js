// A prompt of one's own: its text with drafts and by plain decoding, coloured by who guessed each token.

import { pluralize } from "./charts.js";
import { explain, judged } from "./explain.js";
import { COLOURS, place } from "./marks.js";
import { events } from "./stream.js";

const $ = (id) => document.getElementById(id);
const MOST = 100000; // characters shown of a text

export class Compare {
  constructor(about) {
    this.about = about; // () => {model, chat}
    this.stopper = null;
    $("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.stopper) this.run();
    });
    $("stop").addEventListener("click", () => this.stopper?.abort());
    $("order").addEventListener("change", () => this.sides());
    $("prompt").addEventListener("focus", ({ target }) => target.value === target.defaultValue && target.select());
    this.sides();
  }

  sides() {
    $("off-side").hidden = $("order").value === "on";
  }

  async run() {
    const stopper = (this.stopper = new AbortController());
    const order = $("order").value;
    $("go").disabled = true;
    $("stop").disabled = false;
    for (const side of ["on", "off"]) {
      $(side).replaceChildren();
      $(`${side}-note`).textContent = "";
    }
    this.verdict("", "Writing.");
    const on = () => this.write("on", true, stopper.signal);
    const off = () => this.write("off", false, stopper.signal);
    let found;
    if (order === "both") found = await Promise.all([on(), off()]);
    else if (order === "turns") found = [await on(), await off()];
    else found = [await on()];
    this.stopper = null;
    $("go").disabled = false;
    $("stop").disabled = true;
    this.judge(found, order, stopper.signal.aborted);
  }

  /** Stream one text into its side; returns what it said and how it ended. */
  async write(side, speculative, signal) {
    const told = { text: "", error: "", metrics: null, tokens: 0 };
    if (signal.aborted) return { ...told, error: "stopped" };
    const box = $(side), note = $(`${side}-note`);
    const began = performance.now();
    note.textContent = "Waiting for the first token.";
    try {
      for await (const chunk of events(this.path(), { body: this.body(speculative), signal })) {
        if (chunk.error) throw new Error(chunk.error.message);
        for (const [source, text] of chunk.draftwise?.pieces ?? []) {
          told.text += text;
          if (told.text.length < MOST) append(box, source, text);
        }
        if (chunk.usage) {
          told.tokens = chunk.usage.completion_tokens;
          told.metrics = chunk.metrics;
        }
        if (told.text) note.textContent = `Writing, ${seconds(began)}.`;
      }
      note.textContent = this.summary(told, began);
    } catch (error) {
      told.error = signal.aborted ? "stopped" : error.message;
      note.textContent = `${signal.aborted ? "Stopped" : "Ended early"} after ${seconds(began)}.`;
    }
    return told;
  }

  path() {
    return this.about().chat ? "v1/chat/completions" : "v1/completions";
  }

  body(speculative) {
    const { model, chat } = this.about();
    const prompt = $("prompt").value;
    const given = chat ? { messages: [{ role: "user", content: prompt }] } : { prompt };
    return {
      model, ...given, speculative, stream: true,
      max_tokens: Number($("tokens").value),
      temperature: Number($("temperature").value),
      stream_options: { include_usage: true, include_drafters: true },
    };
  }

  summary(told, began) {
    const drafted = told.metrics?.draftwise;
    if (!drafted) return `${pluralize(told.tokens, "token")} in ${seconds(began)}.`;
    const { target, ...guessed } = drafted.tokens_by_drafter;
    const who = [...Object.entries(guessed), ["the target itself", target]].map(([name, n]) => `${name} ${n}`);
    const passes = pluralize(drafted.rounds, "pass", "passes");
    return `${pluralize(told.tokens, "token")} in ${passes} of the target, ${seconds(began)}. Tokens: ${who.join(", ")}.`;
  }

  judge(found, order, stopped) {
    const failed = found.find((one) => one.error && one.error !== "stopped");
    if (failed) return this.verdict("bad", `It failed: ${failed.error}`);
    if (found.length === 1) return this.verdict("", stopped ? "Stopped." : "Written.");
    const [on, off] = found;
    if (Number($("temperature").value) > 0) {
      return this.verdict("", stopped ? "Stopped." : "Both are drawn from the target's own distribution; at temperature 0 they are the same text.");
    }
    const common = same(on.text, off.text);
    const short = Math.min(on.text.length, off.text.length);
    if (common < short || (!stopped && on.text.length !== off.text.length)) {
      return this.differ(found, `The texts differ from character ${common + 1} on.`);
    }
    if (stopped) return this.verdict("good", `Stopped. As far as both go, ${pluralize(common, "character")}, they are the same.`);
    const rounds = found.map((one) => one.metrics?.draftwise?.rounds);
    const passes = rounds.every(Boolean) ? ` With drafts the target needed ${pluralize(rounds[0], "pass", "passes")}, without ${rounds[1]}.` : "";
    const fair = order === "both" ? " Both shared the machine: for seconds, run one after the other." : "";
    return this.verdict("good", `Both texts are the same: ${pluralize(on.tokens, "token")}.${passes}${fair}`);
  }

  /** Say that two texts differ, and then why. */
  async differ([on, off], said) {
    this.verdict("bad", `${said} Looking for the token.`);
    try {
      const { kind, said: why } = judged(await explain(this.path(), this.body(false), on, off));
      this.verdict(kind, `${said} ${why} `);
    } catch (error) {
      this.verdict("bad", `${said} Why is not known: ${error.message}. `);
    }
    const link = document.createElement("a");
    link.href = "#differ";
    link.textContent = "When texts may differ";
    link.addEventListener("click", () => ($("differ").open = true));
    $("verdict").append(link);
  }

  verdict(kind, text) {
    $("verdict").className = kind;
    $("verdict").textContent = text;
  }
}

function append(box, source, text) {
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const number = place(source);
  const kind = number < 0 ? "" : `by by${number % COLOURS}`;
  const last = box.lastElementChild;
  if (last && last.dataset.source === source && number < 0) last.textContent += text;
  else {
    const made = document.createElement("span");
    made.className = kind;
    made.dataset.source = source;
    made.textContent = text;
    if (number >= 0) made.title = `guessed by ${source}`;
    box.append(made);
  }
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function seconds(began) {
  return `${((performance.now() - began) / 1000).toFixed(1)} s`;
}

/** How many characters two texts have in common at their beginning. */
function same(one, other) {
  let n = 0;
  while (n < one.length && n < other.length && one[n] === other[n]) n++;
  return n;
}
