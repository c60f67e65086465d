// Tables of arms and matches, and bars.

import { compact, pluralize } from "./charts.js";
import { colour, fill, place, sheet, token } from "./marks.js";

function cell(tag, text, more) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (more) {
    const small = document.createElement("small");
    small.textContent = more;
    made.append(small);
  }
  return made;
}

function heading(text, scope) {
  const made = cell("th", text);
  made.scope = scope;
  made.title = text; // long names are cut
  return made;
}

/** Replace all but the caption. */
function rows(table, head, body) {
  const first = document.createElement("thead");
  first.append(row(head));
  const rest = document.createElement("tbody");
  rest.append(...body.map(row));
  table.replaceChildren(table.caption, first, rest);
}

function row(cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

/** Drafters down, draft lengths across; several arms of one length (widths, stop rules) have a row each. */
export function armsTable(table, arms) {
  const lengths = [...new Set(arms.filter((arm) => arm.length).map((arm) => arm.length))].sort((a, b) => a - b);
  const kinds = new Map(); // cells of each row, by drafter and whatever else tells arms apart
  for (const arm of arms) {
    const kind = arm.length ? arm.arm.replace(`:${arm.length}`, "") : "no draft";
    if (!kinds.has(kind)) kinds.set(kind, new Map());
    kinds.get(kind).set(arm.length, arm);
  }
  const known = arms.map((arm) => arm.value).filter((value) => value !== null);
  const best = known.length ? Math.max(...known) : null;
  rows(
    table,
    [heading("Arm", "col"), ...lengths.map((length) => heading(pluralize(length, "token"), "col"))],
    [...kinds].map(([kind, found]) => [
      heading(kind, "row"),
      ...(found.has(0) ? [across(armCell(found.get(0), best), lengths.length)] : []),
      ...(found.has(0) ? [] : lengths.map((length) => armCell(found.get(length), best))),
    ]),
  );
}

function across(made, columns) {
  made.colSpan = Math.max(1, columns);
  made.classList.add("across");
  return made;
}

function armCell(arm, best) {
  if (!arm) return cell("td", "");
  const value = arm.value === null ? "\u2013" : compact(arm.value);
  const time = arm.seconds === null || !arm.length ? "" : `${compact(1000 * arm.seconds)} ms, `;
  const made = cell("td", value, `${time}${arm.rounds}\u00d7`);
  if (best !== null && arm.value === best) {
    made.className = "best";
    made.title = "the highest value now";
  }
  return made;
}

/** Drafters down, lengths of the match across. */
export function matchTable(table, matches) {
  const labels = [...new Set(Object.values(matches).flatMap((found) => Object.keys(found)))];
  const order = ["none", "1", "2", "3", "4", "5 to 8", "9 to 16", "over 16"];
  labels.sort((a, b) => order.indexOf(a) - order.indexOf(b) || a.localeCompare(b));
  rows(
    table,
    [heading("Drafter", "col"), ...labels.map((label) => heading(label, "col"))],
    Object.entries(matches).map(([name, found]) => [
      heading(name, "row"),
      ...labels.map((label) => matchCell(found[label], place(name))),
    ]),
  );
}

function matchCell(found, number) {
  if (!found || !found.tested) return cell("td", "\u2013");
  const share = found.accepted / found.tested;
  const made = cell("td", `${Math.round(100 * share)} %`, `of ${compact(found.tested)}`);
  const level = Math.round(30 * share);
  made.style.background = `color-mix(in srgb, ${colour(number)} ${level}%, transparent)`;
  return made;
}

/** One bar for each {name, share, said, mark}; `mark` is a drafter's number. */
export function bars(list, entries) {
  while (list.children.length > entries.length) list.lastChild.remove();
  while (list.children.length < entries.length) {
    const made = document.createElement("li");
    const said = document.createElement("span");
    said.append(document.createElement("b"), document.createElement("em"));
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    made.append(said, canvas);
    list.append(made);
  }
  entries.forEach(({ name, share, said, mark }, i) => {
    const [text, canvas] = list.children[i].children;
    text.children[0].textContent = name;
    text.children[1].textContent = said;
    const width = canvas.clientWidth;
    const context = sheet(canvas, width, 14);
    context.strokeStyle = token("--rule");
    context.strokeRect(0.5, 0.5, width - 1, 13);
    if (share > 0) fill(context, mark, 0, 0, Math.max(2, share * width), 14);
  });
}
