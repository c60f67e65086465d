"""How a model treats masks and positions, found by one or two passes of a few tokens.

A config's `sliding_window` is not reliable: some classes ignore it, some apply it to a few layers only. So
the model makes its masks once, and the masks are evaluated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

from ...errors import UserError
from ..cache_names import name_for
from .positions import ENDLESS, Bounded, PositionWatch, Rope, pretended
from .recurrent import kinds

FAR = 1 << 24  # a token that sees this far back sees everything
ASKED = 5  # tokens of a probing pass
Visible = Callable[[int, int, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class View:
    """What a layer sees of the text up to a token: all of it, its last `window` tokens including the token
    itself, or the tokens in the same chunk of `chunk` tokens.

    `late`: the tokens of the prompt see all of it. The class ignores a window in its config, but the cache of
    its own decoding keeps no more than the window, so tokens after the prompt do not see the rest.
    """

    window: int = 0
    chunk: int = 0
    late: bool = False

    @property
    def all_of(self) -> int:
        """The longest text in which every token sees all previous tokens."""
        return self.window or self.chunk or FAR

    def hides(self, places: Tensor, here: Tensor, prompts: Tensor) -> Tensor | bool:
        """Whether tokens at positions `here` cannot see those at `places`, which are earlier.

        `prompts` are the lengths of the rows' prompts; all three are shaped to broadcast.
        """
        if self.late:
            return (places <= here - self.window) & (here >= prompts)
        if self.window:
            return places <= here - self.window
        if self.chunk:
            return places // self.chunk != here // self.chunk
        return False


Views = Mapping[str, View] | View


class MaskWatch:
    """Records which masks a model makes, and which module receives which, while this context is active.

    `views` evaluates the masks afterwards. If layers see different things, `again` is called with a
    dictionary in place of the mask, to learn the names under which the model looks up its masks.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kind = str(model.config.get_text_config(decoder=True)._attn_implementation)
        self.made: list[tuple[Tensor, Visible]] = []
        self.given: dict[nn.Module, list[Tensor]] = {}
        self.hooks: list[RemovableHandle] = []
        self.thread = get_ident()
        self.before: Any = None
        self.blocks = masking_utils.blockwise_overlay

    def __enter__(self) -> MaskWatch:
        if self.kind in MASKS:
            make, self.before = MASKS[self.kind], MASKS._local_mapping.get(self.kind)

            def noted(*args: Any, **named: Any) -> Any:
                if get_ident() != self.thread:
                    return make(*args, **named)
                # None would stand for a mask made by another part of PyTorch, which could not be evaluated.
                mask = make(*args, **named | {"allow_is_causal_skip": False})
                if isinstance(mask, Tensor) and "mask_function" in named:
                    self.made.append((mask, named["mask_function"]))
                return mask

            MASKS[self.kind] = noted

        def no_blocks(block_sequence_ids: Tensor) -> Callable[..., Any]:
            # Image tokens see each other, by a table of token types: text has none.
            if get_ident() != self.thread:
                return self.blocks(block_sequence_ids)
            return lambda batch, head, here, place: here != here

        masking_utils.blockwise_overlay = no_blocks
        for module in self.model.modules():
            self.hooks.append(module.register_forward_pre_hook(self._given, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        masking_utils.blockwise_overlay = self.blocks
        if self.kind in MASKS._local_mapping:
            MASKS._local_mapping.pop(self.kind)
            if self.before is not None:
                MASKS[self.kind] = self.before
        for hook in self.hooks:
            hook.remove()

    def _given(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.given[module] = [x for x in (*inputs, *named.values()) if isinstance(x, Tensor)]

    def _which(self, masks: Mapping[Any, Tensor]) -> dict[nn.Module, Any]:
        """The key of the mask that each module was given."""
        return {
            module: key
            for module, tensors in self.given.items()
            for key, mask in masks.items()
            if any(tensor is mask for tensor in tensors)
        }

    def views(self, again: Callable[[Any], None]) -> Views:
        """What the layers see, by the names of their masks if they differ.

        Raises:
            UserError: a token sees later ones, or the model does not accept masks of different kinds.
        """
        views = [self._view(seen) for _, seen in self.made]
        which = self._which({i: mask for i, (mask, _) in enumerate(self.made)})
        used = {views[i] for i in which.values()} or set(views)
        if len(used) < 2:
            return self._kept(used.pop() if used else View())
        asked = _Asked(self.model.device)
        with self:
            self.given = {}
            again(asked)
        names = {name: views[which[m]] for m, name in self._which(asked).items() if m in which}
        if set(names.values()) != used:
            raise UserError(
                f"{type(self.model).__name__} has layers that see different parts of a text, and takes no "
                "mask for each kind: choose another model"
            )
        return names

    def _kept(self, view: View) -> View:
        """The same view, unless the cache of the model's own decoding keeps less than its mask would show."""
        layers = DynamicCache(config=self.model.config.get_text_config(decoder=True)).layers
        kept = {int(getattr(layer, "sliding_window", None) or 0) for layer in layers}
        if view == View() and len(kept) == 1 and (window := kept.pop()):
            return View(window=window, late=True)
        return view

    def _view(self, seen: Visible) -> View:
        def sees(here: int, place: int) -> bool:
            at = torch.tensor([here, place], device=self.model.device)
            return bool(seen(0, 0, at[0], at[1]))

        if sees(0, 1):
            raise UserError(
                f"{type(self.model).__name__} lets a token see later ones (bidirectional attention), so that "
                "a draft would change the text before it: choose a causal language model"
            )
        if sees(FAR, 0):
            return View()
        low, high = 0, FAR  # the first token is still visible at `low`, hidden at `high`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sees(middle, 0) else (low, middle)
        return View(window=high) if sees(high, 1) else View(chunk=high)


class _Asked(dict[str, Tensor]):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __missing__(self, name: str) -> Tensor:
        self[name] = mask = torch.zeros((1, 1, ASKED, ASKED), device=self.device)
        return mask


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
    ids = _row(model, [1] * ASKED)
    mask = torch.ones_like(ids) if mask is None else mask
    model(input_ids=ids, attention_mask=mask, **{"use_cache": False, **more})


def _row(model: Any, numbers: list[int]) -> torch.Tensor:
    return torch.tensor([numbers], device=model.get_input_embeddings().weight.device)
