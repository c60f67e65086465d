"""Medusa's heads: each predicts a token further ahead from the target's last hidden state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import UserError
from .files import explains_files, fill, folder_of, read_config, read_tensors, write


class Residual(nn.Module):
    """x + SiLU(Wx + b), initialised as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        return states + nn.functional.silu(self.linear(states))


class Medusa(nn.Module):
    """Medusa's heads (arXiv 2401.10774): head k predicts the token k + 2 positions after the state's own.

    The target's output layer predicts the token at 1. Each head is `blocks` residual blocks and an output
    layer of its own. With `tied` the target's output layer is used instead, which gives the heads of
    blockwise parallel decoding (arXiv 1811.03115) and a small file.
    """

    def __init__(self, target: Any, *, heads: int = 4, blocks: int = 1, tied: bool = False) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        self.vocab_size, self.width = int(text.vocab_size), int(text.hidden_size)
        self.blocks, self.tied = blocks, tied
        self.shared = (target.get_output_embeddings(),)
        self.medusa_head = nn.ModuleList(self._head() for _ in range(heads))

    def _head(self) -> nn.Sequential:
        body: list[nn.Module] = [Residual(self.width) for _ in range(self.blocks)]
        if not self.tied:
            last = nn.Linear(self.width, self.vocab_size, bias=False)
            weight = self.shared[0].weight
            if weight.shape == last.weight.shape and weight.is_floating_point():
                last.weight.data.copy_(weight.data)
            body.append(last)
        return nn.Sequential(*body)

    def forward(self, states: Tensor) -> Tensor:
        """Logits of every head, shape (heads, ..., vocabulary).

        `states` are the target's last hidden states after its final norm, shape (..., width).
        """
        ahead = [head(states) for head in self.medusa_head]
        if self.tied:
            head = self.shared[0]  # may be on another device
            ahead = [cast(Tensor, head(s.to(head.weight.device))) for s in ahead]
        return torch.stack(ahead)

    def save(self, folder: str | Path) -> None:
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "medusa_num_heads": len(self.medusa_head),
            "medusa_num_layers": self.blocks,
            "hidden_size": self.width,
            "vocab_size": self.vocab_size,
            "original_lm_head": self.tied,
        }
        write(folder, config, self.state_dict())


def new_medusa(target: Any, *, heads: int = 4, blocks: int = 1, tied: bool = False) -> Medusa:
    """Make heads that are the target's own output layer, on its device and in its dtype."""
    weight = target.get_input_embeddings().weight
    return Medusa(target, heads=heads, blocks=blocks, tied=tied).to(weight.device, weight.dtype)


@explains_files
def load_medusa(name: str | Path, target: Any) -> Medusa:
    """Load published Medusa heads, alone or from a whole model; the tensors determine their number.

    Raises:
        UserError: the files cannot be read, or are not heads for this target.
    """
    folder = folder_of(str(name))
    read_config(folder)
    raw = read_tensors(folder, lambda key: "medusa_head." in key or key[0].isdigit())
    tensors = {key.rpartition("medusa_head.")[2]: t for key, t in raw.items()}  # HEAD.BLOCK.linear.weight
    numbers = sorted({int(key.split(".")[0]) for key in tensors})
    if not numbers or numbers != list(range(len(numbers))):
        raise UserError(
            f"head {str(name)!r} has no tensor 0.0.linear.weight: give the folder of Medusa heads"
        )
    blocks = sum(key.startswith("0.") and key.endswith("linear.weight") for key in tensors)
    tied = f"0.{blocks}.weight" not in tensors
    medusa = new_medusa(target, heads=len(numbers), blocks=blocks, tied=tied)
    fill(medusa.medusa_head, tensors, str(name))
    return medusa.eval()
