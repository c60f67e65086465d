"""Mixtures of experts: a pass over more tokens wakes more experts, and what `auto` makes of it.

    python -m studies.speed.experts            # priced by the experts that each pass wakes
    python -m studies.speed.experts --mixtures mixtral --right 0,0.3 --texts 4 --tokens 128 --policies auto
    python -m studies.speed.experts --live     # the processor's own time, on an idle machine

A small random mixture with the routing of a published one (as many experts, as many for a token) draws a text
at temperature 1. A drafter that is almost free drafts that text; each of its tokens is right with a given
chance. A pass is priced by the bytes that the published model would read for it on an A100 (2,039 GB/s): its
weights without the experts, and those experts that this pass of the small model woke, counted at its routers
and averaged over its layers. A dense model of the same bytes a token stands beside each: its passes all cost
the same. `auto` keeps what it learned from text to text: the last text is shown by itself, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from draftwise.core.loop import Loop
from draftwise.core.round import Seconds
from draftwise.core.sampling import Sampling
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from studies.common.command import command, listed, start
from studies.speed.states import Hint

PAGE = "docs/explanation/pass-costs.md"

BANDWIDTH = 2039e9  # bytes a second
SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Mixture:
    """A published mixture: the bytes that its passes read (bfloat16), and a small model that routes so."""

    name: str
    layers: int
    expert: float  # bytes of one expert of one layer
    others: float  # bytes of everything else
    config: Any
    chosen: int  # experts for a token

    def seconds(self, woken: float) -> float:
        """A pass that wakes so many experts a layer."""
        return (self.others + self.layers * woken * self.expert) / BANDWIDTH


MIXTURES = (
    Mixture(
        "Mixtral 8x7B", 32, 3 * 4096 * 14336 * 2, 1.6e9 * 2,
        MixtralConfig(**SIZES, intermediate_size=96, num_local_experts=8, num_experts_per_tok=2), 2,
    ),
    Mixture(
        "Qwen3-30B-A3B", 48, 3 * 2048 * 768 * 2, 1.5e9 * 2,
        Qwen3MoeConfig(
            **SIZES, intermediate_size=96, moe_intermediate_size=32, num_experts=128, num_experts_per_tok=8
        ), 8,
    ),
)  # fmt: skip


class Woken:
    """Experts woken by the latest pass, the mean over layers, and the clock that prices it.

    With `dense` every pass costs what one token does.
    """

    def __init__(self, model: Any, mixture: Mixture, *, dense: bool) -> None:
        self.mixture, self.dense = mixture, dense
        self.layers: list[int] = []
        for module in model.modules():
            if "Router" in type(module).__name__:
                module.register_forward_hook(self._count)

    def _count(self, module: nn.Module, inputs: Any, said: Any) -> None:
        (chosen,) = (x for x in said if isinstance(x, Tensor) and not x.is_floating_point())
        if len(self.layers) >= SIZES["num_hidden_layers"]:
            self.layers.clear()
        self.layers.append(len(set(chosen.flatten().tolist())))

    @property
    def mean(self) -> float:
        """Experts a layer."""
        return sum(self.layers) / len(self.layers)

    def target(self, seconds: float, tokens: int) -> float:
        """The price of the latest pass."""
        return self.mixture.seconds(self.mixture.chosen if self.dense else self.mean)

    def round(self, seconds: Seconds) -> Seconds:
        """Nothing but passes."""
        return replace(seconds, choose=0.0, draft=0.0, accept=0.0, grade=0.0, learn=0.0)


def build(mixture: Mixture) -> Any:
    """The small model; in float64, so that no draw falls between two tokens by rounding."""
    torch.manual_seed(0)
    maker: Any = AutoModelForCausalLM
    made = maker.from_config(mixture.config).double().eval()
    made.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 2.0 / parameter.shape[-1] ** 0.5)
    return made


@dataclass
class Run:
    """What one policy wrote, and the seconds of each text."""

    text: list[int]
    seconds: list[float]
    rounds: int
    drafted: int

    @property
    def total(self) -> float:
        """Seconds of all texts."""
        return sum(self.seconds)


def run(
    target: HFTarget,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    policy: str,
    texts: Any,
    right: float,
    clock: Any,
) -> Run:
    """All prompts with one policy, which keeps what it has learned; `clock` None measures."""
    made, hint, found = method(policy, ["hint"]), Hint((), right), Run([], [], 0, 0)
    loop = Loop(target, {"hint": hint}, made.policy, made.recorder, clock=clock)
    for at, prompt in enumerate(prompts):
        hint.text = texts[at] if texts else ()
        found.seconds.append(0.0)
        for n, one in enumerate(
            loop.run([prompt], Sampling(max_new_tokens=tokens, temperature=1.0, seed=at))
        ):
            found.text += one.tokens
            if n:  # the first pass reads the prompt
                found.seconds[-1] += one.seconds.total
                found.rounds += 1
                found.drafted += one.drafted
    return found


def curve(target: HFTarget, woken: Woken, text: Sequence[int]) -> list[float]:
    """Mean experts a layer in passes over 1, 2, ... 9 tokens of a text."""
    means = []
    for width in range(1, 10):
        seen = []
        for first in range(0, len(text) - width, 7):
            target.rows.open(9)
            with torch.inference_mode():
                target.rows.feed(0, [text[first : first + width]], 1)
            target.rows.close(9)
            seen.append(woken.mean)
        means.append(sum(seen) / len(seen))
    return means


def rows(mixture: Mixture, args: Any) -> None:
    """Print the price of passes, and every policy against plain decoding."""
    target, tokens = HFTarget(build(mixture)), args.tokens
    woken = Woken(target.rows.model, mixture, dense=False)
    dense = Woken(nn.Module(), mixture, dense=True)
    draw = Random(2)
    prompts = [[draw.randrange(1, 2048) for _ in range(16)] for _ in range(args.texts)]
    clock = None if args.live else woken
    plain = run(target, prompts, tokens, "none", None, 1.0, clock)
    truth = [plain.text[i * tokens : (i + 1) * tokens] for i in range(args.texts)]
    means = curve(target, woken, plain.text)
    shown = " | ".join(
        f"{means[n - 1]:.1f} ({1e3 * mixture.seconds(means[n - 1]):.1f} ms)" for n in (1, 2, 4, 8)
    )
    print(f"\n{mixture.name}: experts a layer, and the price, of passes over 1, 2, 4, 8 tokens: {shown}\n")
    print(f"| right | model | best static | {' | '.join(f'`{p}`' for p in args.policies)} "
          "| `auto`, last text | drafted a round by `auto` |")  # fmt: skip
    print(f"|{'---|' * (5 + len(args.policies))}")
    for right in args.right:
        for name, priced in (("mixture", clock), *(() if args.live else (("dense", dense),))):
            base = plain if name == "mixture" else run(target, prompts, tokens, "none", None, 1.0, priced)
            found = {p: run(target, prompts, tokens, p, truth, right, priced) for p in args.policies}
            assert all(one.text == plain.text for one in found.values()), right
            print(line(f"| {right:g} | {name}", base, found), flush=True)


def line(start: str, base: Run, found: Mapping[str, Run]) -> str:
    """The speeds of all policies against plain decoding."""
    speed = {policy: base.total / one.total for policy, one in found.items()}
    fixed = {policy: v for policy, v in speed.items() if policy != "auto"}
    best = max(fixed, key=lambda p: fixed[p], default="")
    cells = [f"{fixed[best]:.2f} (`{best}`)" if best else "", *(f"{v:.3f}" for v in speed.values())]
    if auto := found.get("auto"):
        cells += [f"{base.seconds[-1] / auto.seconds[-1]:.3f}", f"{auto.drafted / auto.rounds:.2f}"]
    return " | ".join([start, *cells]) + " |"


def main() -> int:
    """Print the tables."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--texts", type=int, default=3, help="prompts, one after another")
    parser.add_argument("--tokens", type=int, default=160, help="tokens of a text")
    parser.add_argument("--mixtures", type=listed, default=[m.name for m in MIXTURES], help="names begin so")
    parser.add_argument("--right", type=listed, default=["0.9", "0.6", "0.3", "0"], help="chances of a token")
    policies = [*(f"static-{n}" for n in (1, 2, 3, 5)), "auto"]
    parser.add_argument("--policies", type=listed, default=policies, help="policies")
    parser.add_argument("--live", action="store_true", help="the processor's own seconds, without prices")
    args = parser.parse_args()
    args.right = [float(right) for right in args.right]
    torch.set_num_threads(1)
    for mixture in MIXTURES:
        if mixture.name.lower().startswith(tuple(name.lower() for name in args.mixtures)):
            rows(mixture, args)
    return 0


if __name__ == "__main__":
    start(main)
