// How drafters look: each has a colour, a pattern, a kind of underline and a kind of line, by its place in the team.

export const COLOURS = 6;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 4], [14, 4], [4, 2, 1, 2]];
let team = [];

export function setTeam(names) {
  team = names;
}

export function place(name) {
  return team.indexOf(name);
}

export function colour(number) {
  return token(number < 0 ? "--own" : `--d${number % COLOURS}`);
}

export function dashes(number) {
  return DASHES[number % DASHES.length];
}

export function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Context of a canvas in CSS pixels, as wide as its box. */
export function sheet(canvas, width = canvas.clientWidth, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A filled box in the colour of a drafter, with its pattern cut out. */
export function fill(context, number, x, y, width, height) {
  context.fillStyle = colour(number);
  context.fillRect(x, y, width, height);
  if (number < 1) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = context.fillStyle = token("--card");
  context.lineWidth = 1;
  pattern(context, number % COLOURS, x, y, width, height);
  context.restore();
}

function pattern(context, kind, x, y, width, height) {
  context.beginPath();
  if (kind === 2) {
    for (let j = 3; j < height; j += 5) {
      for (let i = 3 - (x % 5); i < width; i += 5) context.fillRect(x + i, y + j, 2, 2);
    }
    return;
  }
  if (kind === 1 || kind === 5) {
    for (let i = -height; i < width; i += 5) line(context, x + i, y + height, x + i + height, y);
  }
  if (kind === 3) for (let j = 2.5; j < height; j += 4) line(context, x, y + j, x + width, y + j);
  if (kind === 4) for (let i = 2.5; i < width; i += 4) line(context, x + i, y, x + i, y + height);
  if (kind === 5) for (let i = 0; i < width + height; i += 5) line(context, x + i, y + height, x + i - height, y);
  context.stroke();
}

function line(context, x0, y0, x1, y1) {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}

/** Fills a list with the drafters and the target, as boxes like those of the strips or as underlined names. */
export function legend(list, underlined) {
  list.replaceChildren(...[...team, null].map((name) => item(name, underlined)));
}

function item(name, underlined) {
  const entry = document.createElement("li");
  const number = name === null ? -1 : place(name);
  const said = document.createElement("span");
  said.textContent = name === null ? "the target itself" : name;
  if (underlined) {
    if (number >= 0) said.className = `by by${number % COLOURS}`;
    entry.append(said);
    return entry;
  }
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  canvas.style.width = canvas.style.height = "16px";
  const context = sheet(canvas, 16, 16);
  fill(context, number, 0, number < 0 ? 9 : 0, 16, number < 0 ? 7 : 16);
  entry.append(canvas, said);
  return entry;
}
