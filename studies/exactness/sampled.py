"""Whether sampled tokens keep the target's distribution: drafts against none, by chi-square.

    python -m studies.exactness.sampled --drafters eagle:zoo:smollm2-eagle3 --policies static-3,auto

The third token of texts at temperature 1, each with a seed of its own, 32 at once: after a draft of two
tokens or more it is drawn by acceptance or from what a rejection leaves. Counted are tokens that were seen at
least 20 times in both samples together; the others are one class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from draftwise import Decoder, Sampling
from draftwise.data import spec_bench
from studies.common.command import command, listed, start

PAGE = "docs/explanation/smollm2.md"


def third_tokens(decoder: Any, prompt: Sequence[int], count: int, first: int) -> Counter[int]:
    """The third tokens of texts with as many seeds, from the first one on."""
    loop, texts, waiting = decoder.loop, dict[int, list[int]](), iter(range(first, first + count))
    while True:
        while len(loop.open) < 32 and (seed := next(waiting, None)) is not None:
            loop.add(prompt, Sampling(max_new_tokens=3, temperature=1.0, seed=seed))
        if not loop.open:
            return Counter(tokens[2] for tokens in texts.values() if len(tokens) > 2)
        for round in loop.step():
            texts.setdefault(round.request, []).extend(round.tokens)


def two_samples(one: Counter[int], other: Counter[int]) -> tuple[float, int, float]:
    """Chi-square of two samples of tokens, its degrees of freedom and p; rare tokens are one class."""
    both = one + other
    common = [token for token, count in both.items() if count >= 20]
    cells = [(one[token], other[token]) for token in common]
    rare = one.total() - sum(a for a, _ in cells), other.total() - sum(b for _, b in cells)
    cells += [rare] if any(rare) else []
    share = one.total() / both.total()
    statistic = 0.0
    for a, b in cells:
        for seen, part in ((a, share), (b, 1 - share)):
            expected = (a + b) * part
            statistic += (seen - expected) ** 2 / expected if expected else 0.0
    freedom = max(1, len(cells) - 1)
    p = float(torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)))
    return round(statistic, 2), freedom, round(p, 4)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:smollm2")
    parser.add_argument("--drafters", type=listed, default=["eagle:zoo:smollm2-eagle3"])
    parser.add_argument("--policies", type=listed, default=["static-3", "auto"])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--prompt", type=int, default=0, help="which prompt of Spec-Bench")
    args = parser.parse_args()
    counts: dict[str, Counter[int]] = {}
    print("| policy | chi-square | degrees of freedom | p |\n|---|---|---|---|")
    for place, policy in enumerate(("none", *args.policies)):
        decoder = Decoder.from_pretrained(
            args.target, drafters=args.drafters, policy=policy, dtype="float32", compile="off"
        )
        prompt = decoder.encode(spec_bench()[args.prompt].text)
        counts[policy] = third_tokens(decoder, prompt, args.samples, place * args.samples)
        statistic, freedom, p = two_samples(counts["none"], counts[policy])
        print(f"| {policy} | {statistic} | {freedom} | {p} |", flush=True)


if __name__ == "__main__":
    start(main)
