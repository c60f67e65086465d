"""Costs of rejections on a model whose state cannot rewind: tokens read again with a draft, or before it.

    python -m studies.speed.states
    python -m studies.speed.states --tokens 512 --policies auto --repeats 3
    python -m studies.speed.states --priced --tokens 512 --policies auto --right 0.75,0.5,0.4,0

A random Bamba of some 27 million parameters decodes its own text greedily. A drafter that costs next to
nothing drafts that text; each of its tokens is right with a given chance, 0 for a hostile one. `most` is the
number of tokens that may be read again together with a draft: with 0 they are read in a pass of their own
before it, which is the plain alternative. Times are the processor's, the least of all repeats, in turn.

With `--priced` a much smaller model of the kind takes its place, and a pass costs what `PRICES` says for the
tokens that it read, those read again among them: the same on every machine, and without the loop's own time.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BambaConfig

from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.round import Seconds
from draftwise.core.sampling import Sampling
from draftwise.errors import DraftwiseWarning
from draftwise.models.runner import states
from draftwise.models.runner.states import StateRunner
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from studies.common.command import command, listed, numbers, start
from studies.common.tables import heading, row

PAGE = "docs/explanation/states.md"
SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 0,
    "attn_layer_indices": [3, 7],
    "mamba_n_heads": 12,
    "mamba_d_head": 64,
    "mamba_d_state": 64,
}
SMALL: dict[str, Any] = SIZES | {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
}
# Milliseconds of a pass over so many tokens: a Bamba of 27 million parameters, one thread, float32.
PRICES = ((1, 30.0), (2, 39.0), (5, 50.0), (9, 62.0), (17, 67.0), (33, 78.0))


def price(tokens: int) -> float:
    """Seconds of a pass over so many tokens, between those of `PRICES`."""
    for (low, fast), (high, slow) in pairwise(PRICES):
        if tokens <= high:
            return 1e-3 * (fast + (slow - fast) * (tokens - low) / (high - low))
    return 1e-3 * PRICES[-1][1] * tokens / PRICES[-1][0]


class Priced:
    """Prices a round by the tokens that the model read in it; nothing else costs anything."""

    def __init__(self, model: Any) -> None:
        self.widths: list[int] = []
        model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: Any, inputs: Any, named: Mapping[str, Any]) -> None:
        self.widths.append(int(named["input_ids"].shape[1]))

    def target(self, seconds: float, tokens: int) -> float:
        """The price of all passes since the last round."""
        spent = sum(map(price, self.widths))
        self.widths.clear()
        return spent

    def round(self, seconds: Seconds) -> Seconds:
        """Nothing but passes."""
        return replace(seconds, choose=0.0, draft=0.0, accept=0.0, grade=0.0, learn=0.0)


class Hint:
    """Drafts a known text; each token is right with the chance `right`."""

    def __init__(self, text: Sequence[int], right: float) -> None:
        self.text, self.right, self.random = text, right, Random(1)

    def hint(self, request: Request) -> float:
        """Always ready."""
        return 1.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing to learn."""

    def close(self, request: Request) -> None:
        """Nothing to free."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """The text's next tokens, some of them wrong."""
        made = []
        for job in jobs:
            rest = self.text[job.request.position :][: job.length]
            made.append(Draft.chain([t if self.random.random() < self.right else t ^ 1 for t in rest]))
        return made


def build(*, small: bool = False) -> Any:
    """The model, in float32; a small one in float64, so that no token depends on rounding."""
    torch.manual_seed(0)
    maker: Any = AutoModelForCausalLM
    made = maker.from_config(BambaConfig(**SMALL if small else SIZES)).eval()
    return made.double() if small else made.float()


class Bench:
    """A model, its own text, and what policies make of it."""

    def __init__(self, tokens: int, *, priced: bool) -> None:
        self.model, self.tokens = build(small=priced), tokens
        self.target, self.clock = HFTarget(self.model), Priced(self.model) if priced else None
        self.prompt = [Random(2).randrange(1, self.model.config.vocab_size) for _ in range(16)]
        self.truth = self.run("none", None, 8)[1]

    def run(self, policy: str, drafter: Any, most: int) -> tuple[float, list[int], tuple[str, ...]]:
        """Seconds after the prompt's pass, the text, and what was counted."""
        rows = self.target.runner
        assert isinstance(rows, StateRunner)
        states.MOST, rows.reread = most, 0
        made = method(policy, ["hint"])
        team = {"hint": drafter} if drafter else {}
        loop = Loop(self.target, team, made.policy, made.recorder, clock=self.clock)
        began, text, rounds = time.thread_time(), list[int](), list[Any]()
        for one in loop.run([self.prompt], Sampling(max_new_tokens=self.tokens)):
            text += one.tokens
            began = began if rounds else time.thread_time()
            rounds.append(one)
        seconds = time.thread_time() - began
        if self.clock is not None:
            seconds = sum(one.seconds.total for one in rounds[1:])
        drafts = sum(one.drafted > 0 for one in rounds)
        n = len(rounds)
        return seconds, text, (f"{len(text) / n:.2f}", f"{drafts} of {n}", f"{rows.reread / n:.2f}")


def settings(
    policies: Sequence[str], most: Sequence[int], right: Sequence[str]
) -> list[tuple[str, float, int]]:
    """Policy, chance that a drafted token is right, and tokens read again with a draft; plain first."""
    runs: list[tuple[str, float, int]] = [("none", 1.0, 8)]
    for policy in policies:
        if policy == "auto":
            runs += [(policy, float(chance), 8) for chance in right]
        else:
            runs += [(policy, chance, n) for chance in (0.75, 0.5) for n in most]
    return runs


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a text")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each setting")
    parser.add_argument("--most", type=numbers, default=[0, 4, 8, 16], help="tokens read again with a draft")
    parser.add_argument("--policies", type=listed, default=["static-2", "static-4", "auto"], help="policies")
    parser.add_argument("--right", type=listed, default=["0.9", "0.75", "0.5", "0"], help="chances, for auto")
    parser.add_argument("--priced", action="store_true", help="a small model, and given prices")
    args = parser.parse_args()
    warnings.simplefilter("ignore", DraftwiseWarning)
    torch.set_num_threads(1)
    asked = settings(args.policies, args.most, args.right)
    bench, least = Bench(args.tokens, priced=args.priced), dict.fromkeys(asked, float("inf"))
    notes: dict[Any, tuple[str, ...]] = {}
    for _ in range(1 if args.priced else args.repeats):
        for one in asked:
            policy, right, most = one
            drafter = Hint(bench.truth, right) if policy != "none" else None
            seconds, text, notes[one] = bench.run(policy, drafter, most)
            assert text == bench.truth, one
            least[one] = min(least[one], seconds)
    plain, size = least[asked[0]], sum(p.numel() for p in bench.model.parameters()) / 1e6
    print(f"{size:.1f}M parameters, {1e3 * plain / (args.tokens - 1):.1f} ms a plain token")
    titles = "tokens a round", "rounds with a draft", "read again a round", "speed"
    print(heading("policy", "right", "most", *titles))
    for (policy, right, most), seconds in least.items():
        cells = *notes[policy, right, most], f"{plain / seconds:.3f}"
        print(row(f"`{policy}`", f"{right:g}", most, *cells))


if __name__ == "__main__":
    start(main)
