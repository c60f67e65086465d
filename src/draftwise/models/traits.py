"""How a model treats masks and positions, found by one or two passes of a few tokens."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .cache_names import name_for
from .positions import ENDLESS, Bounded, PositionWatch, Rope, pretended
from .recurrent import kinds
from .windows import ASKED, MaskWatch, View, Views


@dataclass(slots=True)
class Traits:
    """What the layers see, the maximum length of a text, the length that the model was trained for, and where
    its rotary frequencies change."""

    views: Views = field(default_factory=View)
    limit: int = ENDLESS
    trained: int = ENDLESS
    rope: Rope = field(default_factory=Rope)

    @property
    def all_of(self) -> int:
        """The longest text in which every layer sees all tokens."""
        views = self.views.values() if not isinstance(self.views, View) else [self.views]
        return min(view.all_of for view in views)


@torch.no_grad()
def ask(model: Any) -> Traits:
    """Probe the model with a token far beyond the context window that it was trained for.

    Some position tables grow only with the cache's length, so a model that cannot read that token is tried
    again with a cache that pretends to hold the text before it. A model that still fails, as with learned
    positions, has a maximum length: the window in its config.

    Raises:
        UserError: tokens see later ones, or the model does not accept masks.
    """
    trained = int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 0)
    longest = 2 * (trained or 2048) + ASKED
    far = [*range(ASKED - 1), longest - 1]
    traits = Traits(trained=trained or ENDLESS)
    masks, positions = MaskWatch(model), PositionWatch(model, far)
    try:
        with masks, positions, _bounded(model):
            _read(model, position_ids=_row(model, far))
        traits.rope = positions.rope(longest)
    except (IndexError, RuntimeError, TypeError, ValueError):  # models fail in many ways
        traits.limit = ENDLESS if _grows(model, longest) else trained or ENDLESS
        masks = MaskWatch(model)
        with masks:
            _read(model)
    try:
        traits.views = masks.views(lambda given: _read(model, given))
    except RuntimeError:  # its recurrent layers take no such masks, and are given none
        if not kinds(model.config.get_text_config(decoder=True)):
            raise
    return traits


def _grows(model: Any, longest: int) -> bool:
    """Whether the model can continue a text of `longest` tokens if it takes positions from the cache's
    length."""
    config = model.config.get_text_config(decoder=True)
    past = pretended(longest, int(getattr(config, "num_hidden_layers", None) or 0))
    named: dict[str, Any] = {name_for(model): past, "use_cache": True}
    if "position_ids" in inspect.signature(model.forward).parameters:
        named["position_ids"] = _row(model, list(range(longest, longest + ASKED)))
    try:
        with _bounded(model):
            _read(model, torch.ones_like(_row(model, [1] * (longest + ASKED))), **named)
    except (IndexError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError):  # as above
        return False
    return True


def _bounded(model: Any) -> AbstractContextManager[Any]:
    """Look-ups outside a table raise, on a GPU too."""
    return nullcontext() if model.device.type == "cpu" else Bounded()  # type: ignore[no-untyped-call]


def _read(model: Any, mask: Any = None, **more: Any) -> None:
    """One forward pass over `ASKED` copies of the same token."""
    ids = _row(model, [1] * ASKED)
    mask = torch.ones_like(ids) if mask is None else mask
    model(input_ids=ids, attention_mask=mask, **{"use_cache": False, **more})


def _row(model: Any, numbers: list[int]) -> torch.Tensor:
    return torch.tensor([numbers], device=model.get_input_embeddings().weight.device)
