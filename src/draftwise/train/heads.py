"""What EAGLE and Medusa have in common: the target's states along its answers, and how a head is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .card import card
from .curves import curves
from .folder import Folder, Material
from .losses import padded
from .measure import acceptance
from .settings import EagleRun, MedusaRun
from .texts import Answer, Tell


@dataclass(frozen=True, slots=True)
class Read:
    """Some answers as the target reads them.

    `features` are its hidden states of the layers asked for beside each other, shape (answers, length, layers
    * width), `states` the last ones after the final norm, (answers, length, width), `ids` the tokens and
    `guessed` the places whose next token belongs to the answer, both (answers, length).
    """

    ids: Tensor
    guessed: Tensor
    features: Tensor
    states: Tensor


@torch.no_grad()
def read(target: Any, answers: Sequence[Answer], layers: Sequence[int]) -> Read:
    """One pass of the target over some answers."""
    ids, guessed, first = padded(answers, target.device)
    out = target(ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
    guessed = torch.nn.functional.pad(guessed, (first, 1))
    features = torch.cat([out.hidden_states[layer] for layer in layers], dim=-1)
    return Read(ids, guessed, features.to(target.dtype), out.hidden_states[-1].to(target.dtype))


def finish(
    kind: str,
    run: EagleRun | MedusaRun,
    folder: Folder,
    head: Any,
    material: Material,
    log: list[dict[str, Any]],
    tell: Tell,
) -> dict[str, Any]:
    """Store a head as it is published, measure it by decoding with it, and write its card."""
    results: dict[str, Any] = {"train": kind, "steps": run.steps, "log": log}

    def write(part: Path) -> None:
        head.eval().to(getattr(torch, run.dtype)).save(part)
        head.float()
        results["after"] = acceptance(
            material.target,
            material.tokenizer,
            f"{kind}:{part}",
            material.measuring,
            max_new_tokens=run.max_new_tokens,
        )
        curves(log, part / "curves.png", f"{folder.out.name}: {kind} for {run.target}")
        text = card(kind, folder.out.name, run, results, material)
        (part / "README.md").write_text(text, encoding="utf-8")

    tell("Measuring", 0, 1)
    folder.deliver(write)
    folder.finish(results)
    tell("Measuring", 1, 1)
    return results
