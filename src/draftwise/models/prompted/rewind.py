"""Takes back what a pass wrote to a Transformers cache that `generate` made."""

from __future__ import annotations

from typing import Any, Protocol

from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache

from ..runner.recurrent import copied

KEYS = ("keys", "values")  # a `DynamicLayer` replaces these tensors and never writes into them


def layers_of(cache: Cache) -> list[Any]:
    """The layers that grow with the text; what a decoder reads of its encoder stays as it is."""
    return list(cache.self_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else cache.layers)


class Rewind(Protocol):
    """How the last tokens are taken back."""

    def __init__(self, cache: Cache) -> None: ...

    def before(self, held: int, *, guesses: bool) -> None:
        """A pass follows; the cache holds `held` tokens, and some of the next ones may be `guesses`."""
        ...

    def cut(self, held: int, length: int) -> int:
        """Take back all tokens from `length` on, of `held`; returns the number of tokens that remain."""
        ...


class Crop:
    """By cutting keys and values: sliding windows keep what a rejected draft had pushed out."""

    def __init__(self, cache: Cache) -> None:
        self.layers = layers_of(cache)
        for layer in self.layers:
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.record_past = True

    def before(self, held: int, *, guesses: bool) -> None:
        """Nothing to keep."""

    def cut(self, held: int, length: int) -> int:
        """Take back all tokens from `length` on."""
        for layer in self.layers:
            layer.crop(length - held)
        return length


class Snapshot:
    """By a snapshot before every draft: what was accepted after it is read again with the next draft."""

    def __init__(self, cache: Cache) -> None:
        self.layers = layers_of(cache)
        self.saved: list[dict[str, Any]] = []
        self.at = 0

    def before(self, held: int, *, guesses: bool) -> None:
        """Keep the states, if some tokens may be taken back."""
        if guesses:
            self.saved, self.at = [taken(layer) for layer in self.layers], held

    def cut(self, held: int, length: int) -> int:
        """Back to the snapshot."""
        if length == held:
            return held
        for layer, values in zip(self.layers, self.saved, strict=True):
            vars(layer).clear()
            vars(layer).update(values)
        self.saved = []
        return self.at


def taken(layer: Any) -> dict[str, Any]:
    """The contents of a layer, in tensors that no later pass changes."""
    shared = KEYS if isinstance(layer, DynamicLayer) else ()
    return {name: value if name in shared else copied(value) for name, value in vars(layer).items()}


WAYS: dict[str, type[Rewind]] = {"crop": Crop, "snapshot": Snapshot}
