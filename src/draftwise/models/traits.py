"""What a model does with masks and positions: asked of the model in a pass or two of a few tokens."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .positions import ENDLESS, Bounded, PositionWatch, Rope, pretended
from .windows import ASKED, MaskWatch, View, Views


@dataclass(slots=True)
class Traits:
    """What the layers see, how many tokens a text may have, for how many the model was trained, and where its
    rotary frequencies change."""

    views: Views = field(default_factory=View)
    limit: int = ENDLESS
    trained: int = ENDLESS
    rope: Rope = field(default_factory=Rope)

    @property
    def all_of(self) -> int:
        """The longest text of which every layer sees everything."""
        views = self.views.values() if not isinstance(self.views, View) else [self.views]
        return min(view.all_of for view in views)


@torch.no_grad()
def ask(model: Any) -> Traits:
    """Find out, by a token far beyond the window that the model was trained for.

    Some position tables grow with the cache's length alone, so a model that cannot read that token is asked
    again, with a cache that pretends to hold the text before it. One that still cannot, as with learned
    positions, has a limit: the window that its config states.

    Raises:
        UserError: a token sees later ones, or the model's masks cannot be given to it.
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
    except (IndexError, RuntimeError, TypeError, ValueError):  # it says so in many ways
        traits.limit = ENDLESS if _grows(model, longest) else trained or ENDLESS
        masks = MaskWatch(model)
        with masks:
            _read(model)
    traits.views = masks.views(lambda given: _read(model, given))
    return traits


def _grows(model: Any, longest: int) -> bool:
    """Whether the model reads on after a text of `longest` tokens, which it takes from the cache's length."""
    config = model.config.get_text_config(decoder=True)
    past = pretended(longest, int(getattr(config, "num_hidden_layers", None) or 0))
    named: dict[str, Any] = {"past_key_values": past, "use_cache": True}
    if "position_ids" in inspect.signature(model.forward).parameters:
        named["position_ids"] = _row(model, list(range(longest, longest + ASKED)))
    try:
        with _bounded(model):
            _read(model, torch.ones_like(_row(model, [1] * (longest + ASKED))), **named)
    except (IndexError, RuntimeError, TypeError, ValueError, AttributeError):  # as above
        return False
    return True


def _bounded(model: Any) -> AbstractContextManager[Any]:
    """Look-ups outside a table raise, on a GPU too."""
    return nullcontext() if model.device.type == "cpu" else Bounded()  # type: ignore[no-untyped-call]


def _read(model: Any, mask: Any = None, **more: Any) -> None:
    """One pass of `ASKED` times the same token."""
    ids = _row(model, [1] * ASKED)
    mask = torch.ones_like(ids) if mask is None else mask
    model(input_ids=ids, attention_mask=mask, **{"use_cache": False, **more})


def _row(model: Any, numbers: list[int]) -> torch.Tensor:
    return torch.tensor([numbers], device=model.get_input_embeddings().weight.device)
