"""Texts whose prompt the model itself reads, with images, sound, or the text of an encoder.

`generate` knows how a class reads its inputs: where pictures go, which positions follow them, what a decoder
sees of its encoder. So the model prepares each pass itself, by `prepare_inputs_for_generation`, from the
arguments that `generate` carries from step to step. Only the number of tokens differs: a pass reads a draft
as well, and what is rejected is taken back. How, is found out at the first prompt of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache

from ..errors import UserError
from . import verdicts
from .cache_names import cache_in
from .limits import freed, limited
from .probe import fingerprint
from .probe.checks import name
from .probe.readings import HALF, LEAST, relative_error
from .runner.recurrent import copied, held_by

REREAD = 8  # most tokens read again together with a draft; more are read in a pass of their own before it
KEYS = ("keys", "values")  # a `DynamicLayer` replaces these tensors and never writes into them
KIND = "prompts"  # name of the file of saved verdicts
FREE = " without limits"  # after the prompt, of the steps of state-space layers
NEW = 4  # tokens that are read one by one, and then in passes with rejected and accepted drafts


def layers_of(cache: Cache) -> list[Any]:
    """Return the layers that grow with the text; what a decoder reads of its encoder stays as it is."""
    return list(cache.self_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else cache.layers)


class Crop:
    """Takes tokens back by cutting keys and values: sliding windows keep what a draft had pushed out."""

    def __init__(self, cache: Cache) -> None:
        self.layers = layers_of(cache)
        for layer in self.layers:
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.record_past = True

    def before(self, cached: int, *, guesses: bool) -> None:
        """A pass follows; the cache has `cached` tokens, and some of the next ones may be `guesses`."""

    def cut(self, cached: int, length: int) -> int:
        """Take back all tokens from `length` on; returns the number of tokens that remain."""
        for layer in self.layers:
            layer.crop(length - cached)
        return length


class Snapshot:
    """Takes tokens back by a snapshot before every draft: what was accepted after it is read again."""

    def __init__(self, cache: Cache) -> None:
        self.layers = layers_of(cache)
        self.saved: list[dict[str, Any]] = []
        self.at = 0

    def before(self, cached: int, *, guesses: bool) -> None:
        if guesses:
            self.saved, self.at = [copy_layer(layer) for layer in self.layers], cached

    def cut(self, cached: int, length: int) -> int:
        if length == cached:
            return cached
        put_back(self.layers, self.saved)
        self.saved = []
        return self.at


def put_back(layers: Sequence[Any], saved: Sequence[dict[str, Any]]) -> None:
    for layer, values in zip(layers, saved, strict=True):
        vars(layer).clear()
        vars(layer).update(values)


def copy_layer(layer: Any) -> dict[str, Any]:
    """Return the contents of a layer, in tensors that no later pass changes."""
    shared = KEYS if isinstance(layer, DynamicLayer) else ()
    return {key: value if key in shared else copied(value) for key, value in vars(layer).items()}


WAYS: dict[str, type[Crop] | type[Snapshot]] = {"crop": Crop, "snapshot": Snapshot}
USABLE = [way + free for free in ("", FREE) for way in WAYS]


class Prompted:
    """The rows of one call of `generate`; they have one length, so that a pass reads as many tokens of each.

    `kwargs` are the model inputs that `generate` prepared, and `ids` its rows, shape (rows, tokens), of the
    decoder where there is an encoder. `length` counts the committed tokens of a row, and `cached` those in
    the cache. `prompt_logits` are those after the prompt, shape (rows, vocabulary). `limits` are the layers
    whose limits of a token's step hold for the prompt alone.
    """

    def __init__(self, model: Any, ids: Tensor, config: GenerationConfig, kwargs: Mapping[str, Any]) -> None:
        self.model, self.length = model, ids.shape[1]
        self.decoder = bool(model.config.is_encoder_decoder)
        self.out = model._prefill(ids, config, dict(kwargs))
        self.prompt_logits: Tensor = self.out.logits[:, -1]
        self.carried = {self.length: dict(kwargs), self.length + 1: self._later(dict(kwargs))}
        self.cache: Any = cache_in(self.carried[self.length + 1])
        cached = held_by(self.cache) if isinstance(self.cache, Cache) else None
        if cached is None:
            raise UserError(f"{type(model).__name__} keeps no cache of Transformers' own, which could rewind")
        self.cached: int = cached
        self.virtual = self.cached - self.length  # tokens that are in the cache alone, such as a tuned prefix
        self.rewind: Crop | Snapshot = Crop(self.cache)
        self.limits: dict[Any, tuple[float, float]] = {}

    @property
    def cuts(self) -> bool:
        return isinstance(self.rewind, Crop)

    @property
    def names(self) -> list[str]:
        return sorted(key for key, value in self.carried[self.length + 1].items() if value is not None)

    def set_way(self, way: str) -> None:
        self.rewind = WAYS[way.removesuffix(FREE)](self.cache)
        self.limits = limited(self.model) if way.endswith(FREE) else {}

    def read(self, ids: Tensor, drafted: int) -> Tensor:
        """Read committed rows and a draft after each, shape (rows, length + drafted).

        Returns the logits of the token before the drafts, and of each drafted one, shape (rows, 1 + drafted,
        vocabulary).
        """
        self.length = ids.shape[1] - drafted
        if self.virtual + self.length - 1 - self.cached > REREAD:
            self._pass(ids[:, : self.length - 1], 0)
        return self._pass(ids, drafted)

    def keep(self, length: int) -> None:
        """Take back all tokens but the first `length` - 1 of each row; the last is read in the next pass."""
        self.length = length
        self.cached = self.rewind.cut(self.cached, min(self.cached, self.virtual + length - 1))
        self.carried = {n: kwargs for n, kwargs in self.carried.items() if n >= length - 1}

    def complete(self, ids: Tensor) -> None:
        """Read all tokens of the rows but the last, so that the cache is as plain decoding leaves it."""
        if self.cached < self.virtual + ids.shape[1] - 1:
            self._pass(ids[:, :-1], 0)
        for layer in layers_of(self.cache):
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _pass(self, ids: Tensor, drafted: int) -> Tensor:
        new = self.virtual + ids.shape[1] - self.cached
        inputs = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=new, **self._carried(ids.shape[1])
        )
        if inputs.get("inputs_embeds") is not None:
            raise UserError(
                f"{type(self.model).__name__} is given a prompt again in every step: use it as it is"
            )
        inputs["decoder_input_ids" if self.decoder else "input_ids"] = ids[:, -new:].to(self.model.device)
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = 1 + drafted
        self.rewind.before(self.cached, guesses=drafted > 0)
        with freed(self.limits, [0], new, self.prompt_logits):
            logits: Tensor = self.model(**inputs, return_dict=True).logits
        self.cached += new
        return logits[:, -1 - drafted :]

    def _carried(self, length: int) -> dict[str, Any]:
        """The model inputs for rows of this length, as `generate` carries them, one token after the other."""
        latest = max(n for n in self.carried if n <= length)
        for n in range(latest, length):
            self.carried[n + 1] = self._later(dict(self.carried[n]))
        return dict(self.carried[length])

    def _later(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        later: dict[str, Any] = self.model._update_model_kwargs_for_generation(
            self.out, kwargs, is_encoder_decoder=self.decoder
        )
        return later


class Trials:
    """The ways of rewinding found so far for one model, by its inputs' names, and for batches or not."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.ways: dict[str, str] = {}

    def settle(self, prompted: Prompted, ids: Tensor) -> str:
        """Give `prompted` the first way of rewinding that leaves the model's own logits as they are.

        `ids` are the prompts, shape (rows, tokens). Compared are passes with drafts and passes of one token,
        after this very prompt. The verdict is saved, and returned.

        Raises:
            UserError: no way is exact.
        """
        kind = f"{prompted.names}:{len(ids) > 1}"
        if kind not in self.ways:
            key = f"{fingerprint(self.model)}:{kind}"
            saved = verdicts.load(KIND, key)
            self.ways[kind] = saved if saved in USABLE else _find_way(prompted, ids)
            verdicts.keep(KIND, key, self.ways[kind])
        prompted.set_way(self.ways[kind])
        return self.ways[kind]


def check_way(prompted: Prompted, ids: Tensor, way: str) -> None:
    """Raise a UserError unless this way of rewinding is exact after these prompts, shape (rows, tokens)."""
    start = _State(prompted)
    truth, ids = _read_singly(prompted, ids)
    start.restore(prompted)
    prompted.set_way(way)
    error = _measure_error(prompted, ids, truth)
    if error > _tolerance(prompted.model):
        raise UserError(
            f"{name(prompted.model)} reads several tokens after padding otherwise than one by one "
            f"(its logits are off by {error:.1g} of their spread)"
        )


def _find_way(prompted: Prompted, ids: Tensor) -> str:
    start, model = _State(prompted), prompted.model
    truth, ids = _read_singly(prompted, ids)
    wrong, least = "", float("inf")
    for way in USABLE if limited(model) else WAYS:
        start.restore(prompted)
        prompted.set_way(way)
        try:
            error = _measure_error(prompted, ids, truth)
        except torch.OutOfMemoryError:
            raise
        except Exception as trouble:  # a class not made for this may raise anything
            wrong = wrong or f"{type(trouble).__name__}: {' '.join(str(trouble).split())[:120]}"
            continue
        if error <= _tolerance(model):
            start.restore(prompted)
            return way
        least = min(least, error)
    if least < float("inf"):
        wrong = f"its logits are off by {least:.1g} of their spread"
    raise UserError(
        f"{name(model)} cannot read several tokens after this prompt and take them back ({wrong}): "
        "use it as it is"
    )


def _read_singly(prompted: Prompted, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of `NEW` greedy tokens read one by one, shape (rows, 1 + NEW, vocabulary), and the rows with
    these tokens."""
    logits = [prompted.prompt_logits]
    for _ in range(NEW):
        ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True).to(ids)], dim=1)
        logits.append(prompted.read(ids, 0)[:, 0])
    return torch.stack(logits, 1), ids


def _measure_error(prompted: Prompted, ids: Tensor, truth: Tensor) -> float:
    """The largest error of drafts that are rejected, accepted, and accepted in part; see `_read_singly`."""
    n = ids.shape[1] - NEW
    wrong = ids.clone()
    wrong[:, n + 1 :] = (wrong[:, n + 1 :] + 1) % truth.shape[-1]
    pairs = [(prompted.read(wrong[:, : n + 3], 2)[:, :1], truth[:, 1:2])]
    prompted.keep(n + 2)
    pairs.append((prompted.read(ids[:, : n + 4], 2), truth[:, 2:5]))
    for kept in (3, 4):
        prompted.keep(n + kept)
        pairs.append((prompted.read(ids[:, : n + kept], 0), truth[:, kept : kept + 1]))
    rows = [pair for some, own in pairs for pair in zip(some.flatten(0, 1), own.flatten(0, 1), strict=True)]
    errors = sorted(relative_error(logits, own) for logits, own in rows)
    return errors[(len(errors) - 1) // 2] if prompted.model.dtype in HALF else errors[-1]


def _tolerance(model: Any) -> float:
    eps = torch.finfo(model.dtype).eps
    return float(min(max(64 * eps, LEAST), 30 * eps**0.5, 0.3)) if model.dtype not in HALF else 0.3


class _State:
    """Everything that reading changes."""

    def __init__(self, prompted: Prompted) -> None:
        self.layers = [copied(vars(layer)) for layer in layers_of(prompted.cache)]
        self.cached, self.length, self.carried = prompted.cached, prompted.length, dict(prompted.carried)

    def restore(self, prompted: Prompted) -> None:
        put_back(layers_of(prompted.cache), copied(self.layers))
        prompted.cached, prompted.length, prompted.carried = self.cached, self.length, dict(self.carried)
