"""A model of the same texts whose passes take longer: speed on it is that of a larger model as good as it.

    python -m studies.models.heavier zoo:target --times 6 --out heavier/

The feed-forward layers get as many more columns as make them `--times` as wide. The new columns read the
hidden state with random weights and write nothing: what they are multiplied with is 0. So every logit is the
same up to rounding, while a pass reads and multiplies more weights, as that of a larger model does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.errors import UserError
from draftwise.models.load import load_model, load_tokenizer
from studies.common.command import command, start

PAGE = "docs/explanation/pass-costs.md"


def main() -> None:
    """Write the model and its tokenizer to a folder."""
    parser = command(__doc__, PAGE)
    parser.add_argument("model", help="a model with gated feed-forward layers, such as zoo:target")
    parser.add_argument("--times", type=int, default=6, help="how many times as wide these layers become")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    args = parser.parse_args()
    options: dict[str, Any] = {"device": "cpu", "trust_remote_code": False}
    model = widened(load_model(args.model, dtype="auto", **options), args.times)
    model.save_pretrained(args.out)
    load_tokenizer(args.model, trust_remote_code=False).save_pretrained(args.out)
    count = sum(weights.numel() for weights in model.parameters())
    print(f"{args.out}: {count / 1e6:.0f} million weights")


@torch.no_grad()
def widened(model: Any, times: int) -> Any:
    """The model with feed-forward layers so many times as wide, and the same logits up to rounding.

    Raises:
        UserError: `times` is below 2, or the model has no gated feed-forward layers.
    """
    if times < 2:
        raise UserError(f"--times {times}: give 2 or more")
    parts = [part for part in model.modules() if hasattr(part, "gate_proj") and hasattr(part, "down_proj")]
    if not parts:
        raise UserError(f"{type(model).__name__} has no gated feed-forward layers: name a Llama")
    for part in parts:
        more = (times - 1) * part.gate_proj.out_features
        for name in ("gate_proj", "up_proj"):
            _grow(getattr(part, name), torch.randn(more, part.gate_proj.in_features) * 0.02, dim=0)
        _grow(part.down_proj, torch.zeros(part.down_proj.out_features, more), dim=1)
    model.config.intermediate_size *= times
    return model


def _grow(layer: nn.Linear, more: Tensor, *, dim: int) -> None:
    """Append rows or columns to a linear layer's weights."""
    layer.weight = nn.Parameter(torch.cat([layer.weight, more.to(layer.weight.dtype)], dim))
    layer.out_features, layer.in_features = layer.weight.shape


if __name__ == "__main__":
    start(main)
