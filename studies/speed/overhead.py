"""The loop's own time by phase: microseconds a request and round outside the models' passes.

    python -m studies.speed.overhead
    python -m studies.speed.overhead --tree ../before      # in turn with another checkout

Target and model drafter are the bundled ones with their passes replaced. A pass returns logits that lead to a
known text, after it has read as much memory as the weights take (`--passes cold`), or at once (`warm`). The
texts are Spec-Bench's: the last tokens of a prompt are its answer.

The loop's clock is made up: a pass takes the seconds that it takes on two cores of a Xeon, or on a GPU
(`--prices gpu`), where drafts pay in large batches, too. So all runs make the same decisions, and each phase
of each step can be the least of all runs, whatever else the machine does. Only full batches count. `share` is
the own time as a part of a round whose passes take those seconds.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from draftwise import Decoder, Loop, Sampling
from draftwise.build import composed
from draftwise.core import drafter_pool as calling
from draftwise.core import loop as looping
from draftwise.data import spec_bench
from draftwise.models.runner import runner
from draftwise.policies.catalogue import method
from draftwise.specs import parse_policy
from studies.common.command import command, in_tree, listed, numbers, start
from studies.common.tables import heading, row

PAGE = "docs/explanation/lookups.md"
SETUPS = ("none", "static-4", "static-8?drafter=suffix", "auto")
DRAFTERS = ("zoo:general", "ngram", "suffix")
PHASES = ("choose", "draft", "verify", "accept", "grade", "learn", "rest", "open")
NEW = 64  # tokens of an answer
ELSE = 20e-6  # seconds of a lookup's draft, on the clock of the loop
MEMORY = 40e6  # bytes that a pass of the target reads; one of the drafter reads an eighth
PASSES = {  # seconds of 1, 5 and 9 tokens, of each further one, and of a drafter's step
    "cpu": ((13.2e-3, 21.8e-3, 24.2e-3), 0.4e-3, 1.5e-3),
    "gpu": ((8.0e-3, 8.1e-3, 8.2e-3), 0.02e-3, 0.5e-3),
}


class Clock:
    """Read by the loop in place of `perf_counter`: made-up `seconds`, which grow with each pass.

    `marks` has the true time, less that within passes, of each call by the loop, at the borders of phases.
    """

    def __init__(self, machine: str) -> None:
        self.brief, self.more, self.step = PASSES[machine]
        self.seconds = self.inside = 0.0
        self.marks: list[float] = []

    def mark(self) -> float:
        """The time for the loop, which is noted."""
        self.marks.append(perf_counter() - self.inside)
        return self.seconds

    def now(self) -> float:
        """The time for all others: whatever they time takes `ELSE` seconds."""
        self.seconds += ELSE
        return self.seconds

    def target(self, tokens: int) -> float:
        """Seconds of a target pass over so many tokens."""
        return float(np.interp(tokens, (1, 5, 9), self.brief)) + max(0, tokens - 9) * self.more

    def drafter(self, tokens: int) -> float:
        """Seconds of a drafter's pass over so many tokens."""
        return self.step * (1.0 + 0.02 * tokens)


class Passes:
    """Runs in place of a model: its logits at position p of a text lead to the text's token p + 1.

    A pass reads `memory`, and is `right` at a share of the positions.
    """

    training = False

    def modules(self) -> Sequence[Any]:
        """None: its weights never change."""
        return ()

    def __init__(
        self, rows: Any, texts: Any, clock: Clock, price: Callable[[int], float], memory: Any, right: float
    ) -> None:
        self.runner, self.texts, self.clock, self.price = rows, texts, clock, price
        self.memory, self.right = memory, right
        self.vocabulary = int(rows.config.vocab_size)

    def __call__(self, input_ids: Any, *, logits_to_keep: int = 0, **named: Any) -> Any:
        """Logits, shape (rows, kept, vocabulary), as the model's own output."""
        began = perf_counter()
        if self.memory is not None:
            self.memory.sum()
        count, width = input_ids.shape
        first = self.runner.cache.plan.first
        logits = torch.zeros(count, logits_to_keep or width, self.vocabulary)
        for i, at in enumerate(range(first, first + count)):
            text = self.texts[self.runner.request_ids[at]]
            self._lead(logits[i], text, self.runner.cached_lengths[at] + width + 1)
        self.clock.seconds += self.price(count * width)
        self.clock.inside += perf_counter() - began
        return SimpleNamespace(logits=logits)

    def _lead(self, logits: Any, text: Sequence[int], end: int) -> None:
        for k in range(len(logits)):
            at = end - len(logits) + k
            token, sure = text[at % len(text)], (at * 2654435761 >> 7) % 100 / 100
            choice = token if sure < self.right else (token + 1) % self.vocabulary
            logits[k, choice] = 8.0 + 4.0 * (self.right - sure)


def steps(clock: Clock, loop: Loop, prompts: Sequence[Sequence[int]], batch: int) -> Iterator[list[float]]:
    """The own seconds of every step by phase, in the order of `PHASES`, and the number of its requests."""
    waiting, sampling = iter(prompts), Sampling(max_new_tokens=NEW)
    while True:
        began = perf_counter() - clock.inside
        while len(loop.open) < batch and (prompt := next(waiting, None)) is not None:
            loop.add(prompt, sampling)
        if not (n := len(loop.open)):
            return
        opened = perf_counter() - clock.inside
        clock.marks.clear()
        loop.step()
        end = perf_counter() - clock.inside
        at = clock.marks  # the third and fourth are the borders of what is drafted, and of the pass
        parts = [after - before for before, after in pairwise(at)]
        parts = [parts[0], parts[1], parts[2] + parts[3], *parts[4:]]
        yield [*parts, end - at[-1] + at[0] - opened, opened - began, float(n)]


def measured(setup: str, batch: int, args: dict[str, Any], decoder: Any, memory: Any) -> dict[str, Any]:
    """One run of one setup: the own seconds of every step, and the made-up seconds of all."""
    team = decoder.loop.pool.drafters
    names = ["zoo:general"] if setup in ("none", "static-4") else list(DRAFTERS)
    target, rows = decoder.loop.target, (decoder.loop.target.runner, team["zoo:general"].runner)
    models, clock = [r.model for r in rows], Clock(args["prices"])
    encoded = (decoder.encode(q.text) for q in spec_bench()[::2])
    texts = list(islice((ids for ids in encoded if NEW + 32 < len(ids) < 700), args["texts"]))
    looping.perf_counter = clock.mark  # type: ignore[attr-defined]
    calling.perf_counter = runner.perf_counter = clock.now  # type: ignore[attr-defined]
    whole, part = (memory, memory[: len(memory) // 8]) if args["passes"] == "cold" else (None, None)
    try:
        rows[0].model = Passes(rows[0], texts, clock, clock.target, whole, 1.0)
        rows[1].model = Passes(rows[1], texts, clock, clock.drafter, part, 0.7)
        mine = composed({name: team[name] for name in names}, parse_policy(setup))
        chosen_method = method(setup, list(mine))
        loop = Loop(target, mine, chosen_method.policy, chosen_method.recorder)
        gc.collect()
        seconds_by_step = list(steps(clock, loop, [ids[:-NEW] for ids in texts], batch))
    finally:
        for one, model in zip(rows, models, strict=True):
            one.model = model
    return {"steps": seconds_by_step, "seconds": clock.seconds, "passes": clock.inside}


def child(args: dict[str, Any]) -> None:
    """Print the runs of this tree as JSON."""
    decoder = Decoder.from_pretrained("zoo:target", drafters=list(DRAFTERS), policy="none", compile="off")
    memory = np.ones(int(MEMORY) // 4, dtype=np.float32)
    runs = [
        (f"{setup} {batch}", measured(setup, batch, args, decoder, memory))
        for _ in range(args["runs"])
        for setup in args["setups"]
        for batch in args["batches"]
    ]
    print(json.dumps(runs))


def table(runs: dict[str, list[dict[str, Any]]]) -> None:
    """One row per setup: the least time of each phase of each step of a full batch, per request and round."""
    print(heading("policy", "batch", *PHASES, "outside", "share", "steps"))
    for name, mine in runs.items():
        least = np.min([run["steps"] for run in mine], axis=0)
        least = least[least[:, -1] == least[:, -1].max()]
        rounds, parts = least[:, -1].sum(), least[:, :-1].sum(0)
        wall = parts.sum() + mine[0]["seconds"] * len(least) / len(mine[0]["steps"])
        cells = [f"{1e6 * part / rounds:.0f}" for part in (*parts, parts.sum())]
        policy, batch = name.rsplit(" ", 1)
        print(row(f"`{policy}`", batch, *cells, f"{100 * parts.sum() / wall:.2f} %", len(least)))


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout to compare")
    parser.add_argument("--setups", type=listed, default=list(SETUPS), help="policies")
    parser.add_argument("--batches", type=numbers, default=[1, 8])
    parser.add_argument("--prices", choices=list(PASSES), default="cpu", help="of the clock")
    parser.add_argument("--passes", choices=["cold", "warm"], default="cold")
    parser.add_argument("--texts", type=int, default=96, help="prompts")
    parser.add_argument("--repeats", type=int, default=3, help="processes per tree")
    parser.add_argument("--runs", type=int, default=3, help="runs in each process")
    args = vars(parser.parse_args())
    trees = [Path.cwd(), *args.pop("tree")]
    runs: dict[Path, dict[str, list[dict[str, Any]]]] = {tree: {} for tree in trees}
    for _ in range(args["repeats"]):
        for tree in trees:
            for name, run in in_tree(tree, "studies/speed/overhead.py", args):
                runs[tree].setdefault(name, []).append(run)
    for tree in trees:
        print(f"\n{tree}: {args['passes']}\n")
        table(runs[tree])


if __name__ == "__main__":
    start(main)
