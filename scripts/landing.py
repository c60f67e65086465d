"""Draw the picture of the landing page: one round, and the speeds in docs/explanation/smollm2.md.

python scripts/landing.py [FILE]    (default: docs/pictures/draftwise.svg)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs/explanation/smollm2.md"
SHOWN = {
    "`auto`": "auto: the default policy",
    "EAGLE-3 head, 1 token": "trained head alone",
    "`suffix`, 8 tokens": "suffix lookup alone",
    "plain decoding": "plain decoding",
    "llama.cpp, F16 weights": "llama.cpp, 16 bits",
    "Transformers": "Transformers",
}
INK, GREY, TARGET, DRAFTER, REFUSED = "#1f2430", "#5c6370", "#0b6e8a", "#7a5195", "#b3403f"
WIDTH, HEIGHT, LEFT, SCALE = 640, 544, 272, 2.8


def speeds(page: str) -> list[tuple[str, float, float, float]]:
    """Return tokens per second and their interval of every method shown, the fastest first.

    The interval is that of the ratio to plain decoding.
    """
    section = re.split(r"^##+ ", page.partition("## Speed\n")[2], flags=re.M)[0]
    found = []
    for row in re.findall(r"^\| (.*) \|$", section, flags=re.M):
        name, *cells = row.split(" | ")
        if name in SHOWN:
            speed, ratio, *ends = (float(n) for cell in cells[:2] for n in re.findall(r"\d+\.\d+", cell))
            low, high = (speed / ratio * end for end in ends) if ends else (speed, speed)
            found.append((SHOWN[name], speed, low, high))
    return sorted(found, key=lambda method: -method[1])


def text(x: float, y: float, words: str, *, size: int = 18, fill: str = INK, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" {more}>{words}</text>'


def chips(x: float, y: float, words: list[tuple[str, str]]) -> str:
    """Tokens in boxes, one colour for each source; a refused one is struck out."""
    parts = []
    for word, colour in words:
        width = 11 * len(word) + 18
        struck = ' text-decoration="line-through"' if colour == REFUSED else ""
        parts += [
            f'<rect x="{x}" y="{y}" width="{width}" height="32" rx="6" fill="{colour}" fill-opacity="0.12" '
            f'stroke="{colour}"/>',
            text(x + width / 2, y + 22, word, fill=colour, more=f'text-anchor="middle"{struck}'),
        ]
        x += width + 8
    return "".join(parts)


def one_round() -> list[str]:
    kept = [(word, TARGET) for word in ("mat", "and", "the")]
    rows = (
        ("text so far", [(word, INK) for word in ("the", "cat", "sat", "on", "the")]),
        ("a drafter guesses", [(word, DRAFTER) for word in ("mat", "and", "the", "dog")]),
        ("the model checks", [*kept, ("dog", REFUSED), ("cat", TARGET)]),
    )
    drawn = [text(24, 40, "One pass of the model, four tokens", size=22, more='font-weight="bold"')]
    for i, (label, words) in enumerate(rows):
        drawn += [text(24, 84 + 44 * i, label, fill=GREY), chips(200, 62 + 44 * i, words)]
    drawn.append(text(24, 214, "A policy learns who guesses, how far, and when to stop."))
    return drawn


def bars(methods: list[tuple[str, float, float, float]]) -> list[str]:
    drawn = [text(24, 266, "Tokens per second", size=22, more='font-weight="bold"')]
    for i, (name, speed, low, high) in enumerate(methods):
        y = 286 + 36 * i
        colour, ink = (TARGET, "#ffffff") if i == 0 else ("#9aa5b1", INK)
        drawn += [
            text(24, y + 20, name),
            f'<rect x="{LEFT}" y="{y}" width="{speed * SCALE:g}" height="26" fill="{colour}"/>',
            text(LEFT + 8, y + 19, f"{speed:.0f}", fill=ink, more='font-weight="bold"'),
        ]
        if high > low:
            ends = (LEFT + low * SCALE, LEFT + high * SCALE)
            drawn.append(f'<path d="M{ends[0]:g} {y + 13}H{ends[1]:g}" stroke="{INK}" stroke-width="2"/>')
    source = "SmolLM2-135M-Instruct, 26 Spec-Bench prompts, two CPU cores; lines: 95 %"
    return [*drawn, text(24, 524, source, size=15, fill=GREY)]


def picture(page: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#ffffff"/>'
    )
    return "\n".join([head, *one_round(), *bars(speeds(page)), "</svg>"]) + "\n"


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures/draftwise.svg"
    file.write_text(picture(TABLE.read_text()), encoding="utf-8")
