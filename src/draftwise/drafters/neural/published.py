"""Published heads by name: what a folder holds decides how it drafts."""

from __future__ import annotations

from typing import Annotated

from ...models.heads.dflash import make_dflash
from ...models.heads.eagle import PEagle, make_eagle
from ...models.heads.files import read_head
from ...models.heads.mtp import load_mtp
from ...models.runner.hidden_states import Source
from ...models.weights.packed import choose_precision
from ...registry import Within
from .blocks import DFlashDrafter
from .eagle import EagleDrafter, PEagleDrafter


def eagle(
    path: str,
    target: Source,
    *,
    width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes", Within(1)] = 1,
    sample: Annotated[bool, "sample drafts where the request samples; false: most probable tokens"] = True,
    top: Annotated[int, "tokens tried after each node of a tree", Within(1)] = 8,
    gain: Annotated[float, "least gain in accepted tokens per depth; 0: no limit", Within(0)] = 0.0,
) -> EagleDrafter | PEagleDrafter | DFlashDrafter:
    """Drafts from the target's hidden states with a published EAGLE, P-EAGLE or DFlash head.

    The folder's files tell which it is, in the `speculators` format or its authors' own: EAGLE, EAGLE-3,
    P-EAGLE, DFlash, or a layer of multi-token prediction.

    Source: EAGLE, EAGLE-2 and EAGLE-3 (arXiv 2401.15077, 2406.16858, 2503.01840).
    """
    files, model = read_head(path), target.runner.model
    if files.kind == "dflash":
        return DFlashDrafter(
            make_dflash(files, model), target, width=width, sample=sample, top=top, gain=gain
        )
    head = load_mtp(path, model) if files.kind == "mtp" else choose_precision(make_eagle(files, model))
    if isinstance(head, PEagle):
        return PEagleDrafter(head, target, width=width, sample=sample, top=top, gain=gain)
    return EagleDrafter(head, target, width=width, sample=sample, top=top, gain=gain)
