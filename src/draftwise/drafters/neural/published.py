"""Published heads by name: what a folder holds decides how it drafts."""

from __future__ import annotations

from ...models.heads.dflash import make_dflash
from ...models.heads.eagle import PEagle, make_eagle
from ...models.heads.files import read_head
from ...models.heads.mtp import load_mtp
from ...models.runner.hidden_states import Source
from ...models.weights.packed import choose_precision
from .blocks import DFlashDrafter
from .eagle import EagleDrafter, PEagleDrafter
from .options import Gain, Sample, Top, Width


def eagle(
    path: str,
    target: Source,
    *,
    width: Width = 1,
    sample: Sample = True,
    top: Top = 8,
    gain: Gain = 0.0,
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
