"""`auto` where prompts are long, in worlds whose seconds are counted.

    python -m studies.speed.prompts [--batches 1,8,32] [--prompts 60,600,2000] [--texts 5] [--tokens 200]

A model reads a text before it drafts for it, in 0.02 ms a token; a target pass takes 10 ms up to 64 tokens
and in proportion beyond. Texts are scripted, and models are right with a given chance at every token. Nothing
is known at first, and speeds count from the first pass as long as the batch is full
(`studies.speed.batches`). Each cell has the speed of `auto` over that of plain decoding, and in parentheses
that of the best fixed draft length, which reads every prompt: 1 where plain decoding is faster.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from studies.common.command import command, numbers, start
from studies.speed.batches import speed
from tests.policies.auto.script import Right, Stage, always

PAGE = "docs/explanation/auto-measured.md"
USELESS: Mapping[str, Right] = {f"useless {i}": always(0.02) for i in range(4)}
TEAMS: Mapping[str, Mapping[str, Right]] = {
    "four never right": USELESS,
    "one of 0.75": {"good": always(0.75)},
    "the four, then it": {**USELESS, "good": always(0.75)},
    "one of 0.5, one of 0.3": {"fair": always(0.5), "poor": always(0.3)},
}
LENGTHS = (1, 2, 3, 4, 6)
LEAST = 24  # texts


def best_fixed(stage: Stage, plain: float, batch: int) -> float:
    """The speed of the best fixed draft length over that of plain decoding."""
    found = [plain]
    for name in stage.models.keys() - USELESS.keys():
        found += [speed(stage, f"static?length={n}&drafter={name}", batch) for n in LENGTHS]
    return max(found) / plain


def main() -> None:
    """Print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32], help="requests at once")
    parser.add_argument("--prompts", type=numbers, default=[60, 600, 2000], help="tokens of a prompt")
    parser.add_argument("--texts", type=int, default=5, help="texts for each row of a batch")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of an answer")
    asked = parser.parse_args()
    print(f"| batch | prompt | {' | '.join(TEAMS)} |\n|{'---|' * (2 + len(TEAMS))}")
    with pytest.MonkeyPatch.context() as patch:
        for batch in asked.batches:
            for prompt in asked.prompts:
                cells = [str(batch), f"{prompt:,}"]
                for team in TEAMS.values():
                    texts = max(LEAST, asked.texts * batch)
                    stage = Stage(patch, team, texts=texts, tokens=asked.tokens, prompt=prompt)
                    plain = speed(stage, "none", batch)
                    best = best_fixed(stage, plain, batch)
                    cells.append(f"{speed(stage, 'auto', batch) / plain:.3f} ({best:.2f})")
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    start(main)
