"""Greedy text of quantised models with drafts against Transformers' own `generate`, on Spec-Bench prompts.

    python -m studies.exactness.quantised [--prompts 20] [--new-tokens 48] [--kinds float32,torch-dynamic]

Counts the texts that differ, and those that still do if a token whose two largest logits are closer than
twice the measured noise is decided by a pass of its own. The noise is the largest change of a logit between a
pass over the whole text and `generate`. Kinds need torchao or bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from draftwise import Sampling
from draftwise.core.loop import Loop
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.generation.prompts import prompt_ids
from draftwise.models.distributions import choices
from draftwise.models.load import load_tokenizer, resolve
from draftwise.models.probe.readings import Readings
from draftwise.models.runner import PassInput
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from draftwise.targets.scores import GreedyScores
from studies.common.command import command, listed, start
from studies.common.texts import generated, spread, write

PAGE = "docs/reference/limits.md"
POLICY = "random?arms=drafters*lengths&lengths=1,2,4,8"


class Careful(HFTarget):
    """Decides a near tie by a pass over one token; what the wide pass wrote of the tokens before it stays."""

    margin, again = 0.0, 0

    @torch.inference_mode()
    def _launch(self, batch: Any) -> Callable[[], list[Any]]:
        scores: list[Any] = super()._launch(batch)()
        ((request, draft),), rows = batch, self.runner
        logits, row, node = scores[0].logits.clone(), rows.request_ids.index(request.id), -1
        end, first = rows.cached_lengths[row], len(request.tokens)
        while True:
            best = logits[node + 1].float().topk(2)
            if float(best.values[0] - best.values[1]) < self.margin:
                token = request.tokens[-1] if node < 0 else draft.tokens[node]
                rows.cached_lengths[row], self.again = first + node, self.again + 1
                logits[node + 1] = rows.forward(PassInput(row, [[token]], 1)).logits[0, 0]
            if node + 1 == len(draft.tokens) or int(logits[node + 1].argmax()) != draft.tokens[node + 1]:
                rows.cached_lengths[row] = end
                best_tokens = choices(logits[None])[0]
                return lambda: [GreedyScores(draft, logits, best_tokens)]
            node += 1


def load(path: str, kind: str) -> Any:
    """The model, quantised in this way."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how, _, dtype = kind.partition(":")
    more: dict[str, Any] = {"dtype": getattr(torch, dtype or "float32")}
    if how.startswith("bitsandbytes"):
        eight = how.endswith("8")
        config: Any = BitsAndBytesConfig
        more["quantization_config"] = config(
            load_in_8bit=eight, load_in_4bit=not eight, bnb_4bit_compute_dtype=more["dtype"]
        )
    model: Any = AutoModelForCausalLM.from_pretrained(path, **more)
    model.eval()
    if how == "torch-dynamic":
        quantise: Any = torch.ao.quantization.quantize_dynamic
        model = quantise(model, {torch.nn.Linear}, dtype=torch.qint8)
    elif how.startswith("torchao"):
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig as Both
        from torchao.quantization import Int8WeightOnlyConfig as Weights
        from torchao.quantization import quantize_

        quantize_(model, Both() if how.endswith("dynamic") else Weights())
    return model


def differing(target: HFTarget, prompts: list[list[int]], own: list[list[int]], new: int) -> int:
    """Count the texts with drafts that are not the model's own."""
    team: dict[str, Any] = {"ngram": NgramDrafter(), "suffix": SuffixDrafter()}
    chosen = method(POLICY, list(team))
    loop = Loop(target, team, chosen.policy, chosen.recorder)
    texts, _ = write(loop, prompts, Sampling(max_new_tokens=new))
    return sum(text != truth for text, truth in zip(texts, own, strict=True))


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--kinds", type=listed, default="float32,torch-dynamic")
    args = parser.parse_args()
    tokenizer: Any = load_tokenizer("zoo:target")
    new: int = args.new_tokens
    prompts = [prompt_ids(tokenizer, text)[-160:] for text in spread(args.prompts)]
    for kind in args.kinds:
        model = load(resolve("zoo:target"), kind)
        model.generation_config.eos_token_id = None
        known, own = Readings(model), [generated(model, prompt, new) for prompt in prompts]
        with torch.inference_mode():
            wide = model(input_ids=torch.tensor([known.tokens])).logits[0, known.n - 1 :]
        noise = float((wide - known.logits).abs().max())
        plain, careful = HFTarget(model, probe=False), Careful(model, probe=False)
        careful.margin = 2 * noise
        apart = [differing(target, prompts, own, new) for target in (plain, careful)]
        said = f"{kind}: noise {noise:.2g} logits, unsteady {known.unsteady:.2g}; of {len(prompts)} texts "
        said += f"{apart[0]} differ, with near ties decided alone {apart[1]}"
        print(f"{said} ({careful.again} passes for {new * len(prompts)} tokens)", flush=True)


if __name__ == "__main__":
    start(main)
