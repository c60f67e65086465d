"""Final steps for EAGLE and Medusa heads: storing, measuring, model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from .card import card
from .curves import curves
from .folder import Folder, Material
from .measure import acceptance, speeds
from .settings import EagleRun, MedusaRun
from .texts import Tell


def finish(
    kind: str,
    run: EagleRun | MedusaRun,
    folder: Folder,
    head: Any,
    material: Material,
    log: list[dict[str, Any]],
    tell: Tell,
    before: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Store a head in the published format, measure it by decoding, and write its model card.

    `before` is the measurement of the head that training started from, if there was one.
    """
    results: dict[str, Any] = {"train": kind, "steps": log[-1]["step"], "log": log}
    results |= {"before": dict(before)} if before else {}

    def write(part: Path) -> None:
        head.eval().to(getattr(torch, run.dtype)).save(part)
        head.float()
        results["after"] = measured(run, material, f"{kind}:{part}")
        results["speed"] = speeds(material, f"{kind}:{part}", tell)
        curves(log, part / "curves.png", f"{folder.out.name}: {kind} for {run.target}")
        text = card(kind, folder.out.name, run, results, material)
        (part / "README.md").write_text(text, encoding="utf-8")

    tell("Measuring", 0, 1)
    folder.deliver(write)
    folder.finish(results)
    tell("Measuring", 1, 1)
    return results


def measured(run: EagleRun | MedusaRun, material: Material, drafter: str) -> dict[str, float]:
    """Acceptance of a head on held-out prompts."""
    target, tokenizer, prompts = material.target, material.tokenizer, material.measuring
    return acceptance(target, tokenizer, drafter, prompts, max_new_tokens=run.max_new_tokens)
