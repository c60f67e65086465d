// The live page: one stream of states from the server, drawn as it comes.

import { Compare } from "./compare.js";
import { Chart, compact, pluralize } from "./charts.js";
import { legend, place, setTeam } from "./marks.js";
import { ask, events, setKey } from "./stream.js";
import { Strips } from "./strips.js";
import { armsTable, bars, matchTable } from "./tables.js";

const $ = (id) => document.getElementById(id);
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const RARELY = 2000; // milliseconds between two drawings where less motion is asked for
const SILENCE = 30000; // milliseconds without a state after which a connection counts as lost
const OVER = { draft: ["draft"], verify: ["verify"], rest: ["choose", "accept", "grade", "learn"] };
const SPEEDS = [
  { label: "now", mark: 5, kind: 0 },
  { label: "plain decoding", mark: -1, kind: 1 },
];

const charts = {
  fast: new Chart($("fast"), "Tokens per second"),
  worth: new Chart($("worth"), "Value"),
  price: new Chart($("price"), "Tokens that a second is worth"),
};
const strips = new Strips($("strips"));
const phases = []; // [time, seconds by phase] of the last frames
let state = null, team = "", drawn = 0, paused = false, connection = null, silence = 0, wake = () => {};

const compare = new Compare(() => state ?? { model: null, chat: false });

/** Read states until the connection ends; then try again, ever later. */
async function connect() {
  for (let wait = 1; ; wait = Math.min(2 * wait, 15)) {
    while (asleep()) {
      link("Paused");
      await new Promise((resolve) => (wake = resolve));
      wait = 1;
    }
    try {
      connection = new AbortController();
      strips.clear();
      phases.length = 0;
      for (const chart of Object.values(charts)) chart.gap();
      listen();
      for await (const frame of events("live", { signal: connection.signal })) {
        wait = 1;
        listen();
        link("Live");
        take(frame);
      }
      link("The server has ended the stream.", true);
    } catch (error) {
      if (error.status === 401) return lock(error.message);
      if (asleep()) continue;
      const { message } = connection.signal.reason ?? error;
      link(`No data (${message}). Next try in ${wait} s.`, true);
    } finally {
      clearTimeout(silence);
    }
    await new Promise((done) => setTimeout(done, 1000 * wait));
  }
}

/** Give a connection up that says nothing: a network that has gone ends none. */
function listen() {
  clearTimeout(silence);
  silence = setTimeout(() => connection.abort(new Error("the server is silent")), SILENCE);
}

/** Whether no data are wanted now: the page is paused, or its tab is in the background. */
function asleep() {
  return paused || document.hidden;
}

function rest() {
  if (asleep()) connection?.abort();
  else wake();
}

function link(text, bad = false) {
  if ($("link").textContent !== text) $("link").textContent = text;
  $("link").classList.toggle("bad", bad);
}

/** Ask for the key; the page is useless without it. */
function lock(message) {
  link(message, true);
  $("door").hidden = false;
  $("main").hidden = true;
  $("key").focus();
}

function take(frame) {
  const names = Object.keys(frame.drafters);
  if (team !== JSON.stringify(names)) {
    team = JSON.stringify(names);
    setTeam(names);
    $("lines").replaceChildren();
    dress();
  }
  if (state?.model !== frame.model) {
    $("model").textContent = frame.model;
    document.title = `Draftwise: ${frame.model}`;
  }
  remember(frame);
  state = frame;
  const now = performance.now();
  if (CALM.matches && now - drawn < RARELY) return;
  drawn = now;
  draw();
}

/** Legends and charts in the colours of the present theme. */
function dress() {
  legend($("key-text"), true);
  legend($("key-strips"), false);
  for (const chart of Object.values(charts)) chart.rebuild();
  if (state) draw();
}

function remember(frame) {
  const { speed } = frame;
  strips.add(frame.rounds);
  phases.push([frame.time, frame.seconds_by_phase]);
  while (phases.length > 2 && frame.time - phases[1][0] > 5) phases.shift();
  charts.fast.add(frame.time, new Map([
    ["now", speed.decoding_tokens_per_second],
    ["plain decoding", speed.plain_tokens_per_second],
  ]));
  charts.price.add(frame.time, new Map(Object.entries(frame.price)));
  const values = new Map(frame.arms.map((arm) => [arm.arm, arm.value]));
  for (const name of drafters(frame.arms)) {
    const mine = frame.arms.filter((arm) => arm.drafter === name && arm.value !== null);
    if (mine.length) values.set(`best of ${name}`, Math.max(...mine.map((arm) => arm.value)));
  }
  charts.worth.add(frame.time, values);
}

function drafters(arms) {
  return [...new Set(arms.filter((arm) => arm.length).map((arm) => arm.drafter))];
}

function draw() {
  numbers();
  strips.draw();
  charts.fast.show(SPEEDS);
  arms();
  prices();
  hits();
  time();
  hints();
  for (const [name, chart] of Object.entries(charts)) $(`${name}-said`).textContent = chart.said();
}

function numbers() {
  const { speed, requests } = state;
  const fast = speed.tokens_per_second, decoding = speed.decoding_tokens_per_second;
  const plain = speed.plain_tokens_per_second;
  $("speed").textContent = fast === null ? "\u2013" : compact(fast);
  $("speed-note").textContent = `over the last ${Math.round(speed.over_seconds)} s`;
  $("ratio").textContent = decoding && plain ? `${(decoding / plain).toFixed(2)}\u00d7` : "\u2013";
  const how = speed.plain_from === "learnt"
    ? "from the learnt price of a pass without a draft"
    : "measured in rounds without drafts";
  if (!plain) $("ratio-note").textContent = "no plain pass is known yet";
  else if (!decoding) $("ratio-note").textContent = `plain: ${compact(plain)} tokens/s, ${how}`;
  else $("ratio-note").textContent = `${compact(decoding)} tokens/s in rounds, plain ${compact(plain)}, ${how}`;
  $("running").textContent = `${requests.running} of ${requests.batch}`;
  $("waiting").textContent = `running; ${requests.waiting} waiting`;
  const all = Object.values(state.drafters).map((one) => one.recent);
  const drafted = sum(all.map((one) => one.drafted)), accepted = sum(all.map((one) => one.accepted));
  $("accepted").textContent = drafted ? `${Math.round((100 * accepted) / drafted)} %` : "\u2013";
  $("accepted-note").textContent = `${accepted} of ${drafted} in the last five minutes`;
}

function arms() {
  const names = drafters(state.arms), valued = state.arms.some((arm) => arm.value !== null);
  const few = state.arms.length <= 8;
  $("arms-note").textContent = state.unit
    ? `Value: ${state.unit}. Small: what a draft adds to the time of a round, and how often the arm was played.`
    : "This policy does not say what its arms are worth. Small: how often each was played.";
  choices(few ? [] : names);
  const chosen = $("lines").value;
  let lines = names.map((name) => ({ label: `best of ${name}`, mark: place(name), kind: place(name) }));
  if (few || chosen) {
    const mine = state.arms.filter((arm) => (few ? true : arm.drafter === chosen));
    lines = mine.map((arm, i) => ({ label: arm.arm, mark: few ? place(arm.drafter) : i, kind: i }));
  }
  const drawable = state.arms.some((arm) => arm.length && arm.value !== null);
  $("worth").hidden = charts.worth.list.hidden = !drawable;
  if (drawable) charts.worth.show(lines);
  else if (valued) $("arms-note").textContent += " Nothing is known of any draft yet.";
  armsTable($("arms"), state.arms);
}

/** The menu of lines; without one all arms are shown. */
function choices(names) {
  const menu = $("lines");
  menu.parentElement.hidden = !names.length;
  if (menu.options.length === names.length + 1) return;
  const options = [["", "best arm of each drafter"], ...names.map((name) => [name, `every arm of ${name}`])];
  menu.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

function prices() {
  const places = Object.keys(state.price);
  $("prices").hidden = !places.length;
  if (!places.length) return;
  $("price-note").textContent = "The policy counts a second of drafting as so many tokens, at places where a lookup has a match in the text and where none has.";
  charts.price.show(places.map((label, i) => ({ label, mark: 4 + i, kind: i })));
}

function hits() {
  bars($("hits"), Object.entries(state.drafters).map(([name, { recent: one }]) => ({
    name,
    mark: place(name),
    share: one.drafted ? one.accepted / one.drafted : 0,
    said: one.drafted
      ? `${Math.round((100 * one.accepted) / one.drafted)} %: ${one.accepted} of ${pluralize(one.drafted, "token")}`
      : "has not drafted lately",
  })));
  const known = Object.values(state.matches).some((found) => Object.keys(found).length);
  $("lengths").hidden = !known;
  if (!known) return;
  $("match-note").textContent = "Tokens that the policy tested lately, by how many tokens before the place a lookup found in the text.";
  matchTable($("matches"), state.matches);
}

function time() {
  if (!phases.length) return;
  const [, first] = phases[0], [, last] = phases.at(-1);
  const spent = Object.entries(OVER).map(([name, parts]) =>
    [name, sum(parts.map((part) => (last[part] ?? 0) - (first[part] ?? 0)))]);
  const whole = sum(spent.map(([, seconds]) => seconds));
  const words = { draft: "drafting", verify: "the target's passes", rest: "the rest" };
  $("time-note").textContent = whole ? "Of the rounds of the last seconds." : "No round in the last seconds.";
  bars($("phases"), spent.map(([name, seconds], i) => ({
    name: words[name], mark: [4, 5, -1][i], share: whole ? seconds / whole : 0,
    said: whole ? `${((100 * seconds) / whole).toFixed(1)} %` : "",
  })));
}

/** A word above each table that is wider than its place. */
function hints() {
  for (const box of document.querySelectorAll(".scroll")) {
    const cut = box.scrollWidth > box.clientWidth + 1;
    let hint = box.previousElementSibling;
    if (cut && !hint.classList.contains("cut")) {
      hint = document.createElement("p");
      hint.className = "cut";
      hint.textContent = "More to the right: move the table sideways.";
      box.before(hint);
    } else if (!cut && hint.classList.contains("cut")) hint.remove();
  }
}

function sum(values) {
  return values.reduce((a, b) => a + b, 0);
}

$("door").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey($("key").value);
  try {
    await ask("stats");
  } catch (error) {
    return lock(error.message);
  }
  if ($("door").hidden) return; // it was opened twice
  $("key").value = "";
  $("door").hidden = true;
  $("main").hidden = false;
  $("prompt").focus();
  connect();
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  rest();
});
document.addEventListener("visibilitychange", rest);

$("lines").addEventListener("change", () => state && arms());
DARK.addEventListener("change", dress);
addEventListener("resize", () => state && draw());
if (matchMedia("(max-width: 40rem)").matches) for (const fold of document.querySelectorAll(".roomy")) fold.open = false;
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", () => state && draw());
connect();
