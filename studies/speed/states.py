"""What rejections cost on a model whose state cannot rewind: tokens read again with a draft, or before it.

    python -m studies.speed.states
    python -m studies.speed.states --kinds bamba --tokens 128 --repeats 5

A random hybrid of some 25 million parameters decodes its own text greedily. A drafter that costs next to
nothing drafts that text; each of its tokens is right with a given chance, 0 for a hostile one. `most` is the
number of tokens that may be read again together with a draft: with 0 they are read in a pass of their own
before it, which is the plain alternative. Times are the processor's, the least of all repeats, in turn.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BambaConfig, Qwen3_5TextConfig

from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.errors import DraftwiseWarning
from draftwise.models import stateful
from draftwise.models.stateful import StateRows
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from studies.common.command import command, listed, numbers, start

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
}
MAMBA: dict[str, Any] = {
    "attn_layer_indices": [3, 7],
    "mamba_n_heads": 12,
    "mamba_d_head": 64,
    "mamba_d_state": 64,
}
DELTA: dict[str, Any] = {f"linear_num_{what}_heads": 6 for what in ("key", "value")}
DELTA |= {f"linear_{what}_head_dim": 64 for what in ("key", "value")}
KINDS: dict[str, Any] = {
    "bamba": lambda: BambaConfig(**SIZES, **MAMBA),
    "qwen3_5": lambda: Qwen3_5TextConfig(**SIZES, **DELTA),
}


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


def build(kind: str) -> Any:
    """The model, in float32."""
    torch.manual_seed(0)
    maker: Any = AutoModelForCausalLM
    return maker.from_config(KINDS[kind]()).float().eval()


def run(target: HFTarget, prompt: Sequence[int], tokens: int, policy: str, drafter: Any, most: int) -> Any:
    """Seconds, text, rounds, and tokens read again."""
    rows = target.rows
    assert isinstance(rows, StateRows)
    stateful.MOST, rows.reread = most, 0
    made = method(policy, ["hint"])
    loop = Loop(target, {"hint": drafter} if drafter else {}, made.policy, made.recorder)
    began, text, rounds = time.thread_time(), list[int](), 0
    for one in loop.run([prompt], Sampling(max_new_tokens=tokens)):
        text += one.tokens
        rounds += 1
    return time.thread_time() - began, text, rounds, rows.reread


def main() -> int:
    """Time every setting in turn, and print a table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--kinds", type=listed, default=list(KINDS), help="models")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a text")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each setting")
    parser.add_argument("--most", type=numbers, default=[0, 4, 8, 16], help="tokens read again with a draft")
    args = parser.parse_args()
    warnings.simplefilter("ignore", DraftwiseWarning)
    torch.set_num_threads(1)
    settings: list[tuple[str, float, int]] = [("none", 1.0, 8)]
    settings += [(f"static-{n}", right, most) for n in (2, 4) for right in (0.75, 0.5) for most in args.most]
    settings += [("auto", right, 8) for right in (0.9, 0.75, 0.5, 0.0)]
    for kind in args.kinds:
        model = build(kind)
        target, prompt = HFTarget(model), [Random(2).randrange(1, 8192) for _ in range(16)]
        size = sum(p.numel() for p in model.parameters()) / 1e6
        _, truth, _, _ = run(target, prompt, args.tokens, "none", None, 8)
        least, notes = dict.fromkeys(settings, float("inf")), dict[Any, str]()
        for _ in range(args.repeats):
            for policy, right, most in settings:
                drafter = Hint(truth, right)
                seconds, text, rounds, reread = run(target, prompt, args.tokens, policy, drafter, most)
                assert text == truth, (policy, right, most)
                least[policy, right, most] = min(least[policy, right, most], seconds)
                notes[policy, right, most] = f"{args.tokens / rounds:.2f} | {reread / rounds:.2f}"
        plain = least["none", 1.0, 8]
        print(f"\n{kind}, {size:.0f}M parameters, {1e3 * plain / args.tokens:.1f} ms a plain token")
        print("| policy | right | most | tokens a round | read again a round | speed, times plain |")
        print("|---|---|---|---|---|---|")
        for policy, right, most in settings:
            ratio, note = plain / least[policy, right, most], notes[policy, right, most]
            print(f"| `{policy}` | {right:g} | {most} | {note} | {ratio:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    start(main)
