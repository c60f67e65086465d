"""Where the time of a model's draft goes: inside its compiled graph, and around it.

    draftwise compile --drafters zoo:general
    python -m studies.speed.drafting

Texts are written in turn with drafts whose later passes prepare only what changes, and with a full
preparation of every pass. `around` is what one compiled call for the whole draft could save at most.
"""

from __future__ import annotations

import json
from argparse import Namespace
from statistics import median
from time import perf_counter
from typing import Any

from draftwise import Decoder
from draftwise.data import spec_bench
from draftwise.drafters.neural import lm
from draftwise.errors import UserError
from draftwise.models.narrow import narrow
from studies.common.command import command, start

PAGE = "docs/how-to/compile.md"
WAYS = {
    "what changes": narrow,
    "every pass": lambda rows, row, tokens, keep, **more: rows.feed(row, [tokens], keep, **more),
}


class Timed:
    """Calls something, and adds up the seconds and what is counted of its results."""

    def __init__(self, call: Any, count: Any = lambda result: 1) -> None:
        self.call, self.count = call, count
        self.seconds, self.counted = 0.0, 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        """The result."""
        begun = perf_counter()
        result = self.call(*given, **named)
        self.seconds += perf_counter() - begun
        self.counted += self.count(result)
        return result


def main() -> None:
    """Measure, and print one line of JSON for each way."""
    args = arguments()
    policy = f"static-{args.length}"
    decoder = Decoder.from_pretrained(args.target, drafters=[args.drafter], policy=policy, compile="kept")
    drafter: Any = decoder.loop.pool.drafters[args.drafter]
    if drafter.rows.graph is None:
        raise UserError(
            f"{args.drafter} is not compiled here: run draftwise compile --drafters {args.drafter}"
        )
    run = drafter.rows.graph.run = Timed(drafter.rows.graph.run)
    drafter.draft = draft = Timed(drafter.draft, lambda drafts: sum(len(one.tokens) for one in drafts))
    prompts = [one.text for one in spec_bench()[:: 480 // args.prompts]]
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for turn in range(args.repeats + 1):  # the first warms up
        for way, read in WAYS.items():
            vars(lm)["narrow"] = read
            before = (draft.seconds, draft.counted, run.seconds)
            begun = perf_counter()
            for prompt in prompts:
                decoder.generate(prompt, max_new_tokens=args.max_new_tokens)
            wall = perf_counter() - begun
            spent, tokens = draft.seconds - before[0], draft.counted - before[1]
            around = spent - (run.seconds - before[2])
            if turn:
                found[way].append((1e3 * spent / tokens, around / spent, around / wall))
    for way, turns in found.items():
        ms, draft_share, wall_share = (sorted(column) for column in zip(*turns, strict=True))
        said = {"prepared": way, "ms a token": median(ms), "from": ms[0], "to": ms[-1]}
        shares = {"around, of the draft": median(draft_share), "around, of all": median(wall_share)}
        print(json.dumps({k: v if isinstance(v, str) else round(v, 3) for k, v in (said | shares).items()}))


def arguments() -> Namespace:
    """What to measure."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafter", default="zoo:general")
    parser.add_argument("--length", type=int, default=8, help="tokens of a draft")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    start(main)
