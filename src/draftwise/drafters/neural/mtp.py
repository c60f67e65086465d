"""Multi-token prediction: the target's own files hold one more layer, which drafts."""

from __future__ import annotations

from typing import Annotated, Any

from ...errors import UserError
from ...models.heads.mtp import load_mtp
from ...models.runner.hidden_states import Source
from ...registry import Within
from .eagle import EagleDrafter


def mtp(
    target: Source,
    *,
    folder: Annotated[str, "where the layer is; empty: in the target's own files"] = "",
    width: Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes", Within(1)] = 1,
    sample: Annotated[bool, "sample drafts where the request samples; false: most probable tokens"] = True,
    top: Annotated[int, "tokens tried after each node of a tree", Within(1)] = 8,
    gain: Annotated[float, "least gain in accepted tokens per depth; 0: no limit", Within(0)] = 0.0,
) -> EagleDrafter:
    """Drafts with the layer of multi-token prediction that the target's own files hold.

    DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5 and MiMo were trained and published with one.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    model: Any = target.runner.model
    name = folder or str(getattr(model, "name_or_path", "") or "")
    if not name:
        raise UserError(
            "mtp: the target was given without a name, so its files are not known: mtp?folder=FOLDER"
        )
    return EagleDrafter(load_mtp(name, model), target, width=width, sample=sample, top=top, gain=gain)
