"""Transformers with a static KV cache and passes compiled by TorchInductor, as contenders.

Plain decoding goes the way that `generate` has for it: it compiles the passes after the prompt, with static
shapes, and reads the prompt eagerly. Before Transformers 5.24, assisted generation refuses a `StaticCache`,
which it cannot crop; it gets one here that can be, and passes compiled for any width. The assistant is eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from transformers import CompileConfig, StaticCache
from transformers.cache_utils import StaticLayer

from ...errors import UserError
from ...models.cache_names import CACHE, cache_in
from .contender import Generation, Item, Text
from .transformers import Transformers

WIDEST = 32  # tokens of a compiled pass that checks drafts; a prompt is longer, and read eagerly
SHAPES = 64  # shapes that may be compiled of one model; torch's limit is 8
SHORT = 24  # tokens that are written to compile a shape


class Croppable(StaticCache):
    """A static cache that can take back its last tokens."""

    def crop(self, tokens_to_remove: int) -> None:
        """Take back this many tokens, given as a negative number like everywhere in Transformers."""
        layers: list[Any] = list(self.layers)
        if any(type(layer) is not StaticLayer for layer in layers):
            raise ValueError("only full attention can take back tokens of a static cache")
        for layer in layers:
            layer.cumulative_length.add_(min(0, tokens_to_remove))

    def activate_past_recording(self) -> None:
        """Nothing is lost that would have to be recorded."""


class Compiled(Transformers):
    """One mode of `generate` with compiled passes; the cache has `slots`, 2 x `slots`, ... positions."""

    def __init__(self, name: str, kind: str, options: Mapping[str, Any], *models: Any, **more: Any) -> None:
        super().__init__(name, kind, options, *models, **more)
        self.slots, self.freeze = options["slots"], options["freeze"]
        self.room = self.late = 0
        self.ready = False

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings, and how often it compiled while it was measured, which should be never."""
        shapes = "any width, prompts eager" if self.drafts else "static, prompts eager"
        own = {"cache": f"static, in steps of {self.slots}", "compiled": f"TorchInductor, {shapes}"}
        late = {"compiled while measured": self.late} if self.late else {}
        return super().settings | own | {"freezing": self.freeze} | late

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        """Compile every shape that these groups of prompts will need."""
        self.room = generation.max_new_tokens
        shapes = {self._shape(group, generation): group for group in reversed(groups)}
        short = replace(generation, max_new_tokens=min(SHORT, self.room))
        for group in shapes.values():
            self.warm(group, short)
        self.ready = True

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        """As without compiling; counts what is compiled after `prepare`."""
        before = counters["stats"]["unique_graphs"]
        with dynamo.patch(recompile_limit=SHAPES), self._routed():
            texts = super().decode(items, generation)
        self.late += (counters["stats"]["unique_graphs"] - before) if self.ready else 0
        return texts

    def _shape(self, items: Sequence[Item], generation: Generation) -> tuple[int, int]:
        """Batch and positions of the cache, with a place for every token of the longest pass."""
        most = max(len(item.ids) for item in items) + max(self.room, generation.max_new_tokens) + WIDEST
        return len(items), most + -most % self.slots

    def _call(self, items: Sequence[Item], generation: Generation) -> dict[str, Any]:
        _, length = self._shape(items, generation)
        kind = Croppable if self.drafts else StaticCache
        own: dict[str, Any] = {CACHE: kind(config=self.model.config, max_cache_len=length)}
        # Transformers compiles plain passes by itself; those with drafts are compiled here (`_routed`).
        own |= {"disable_compile": True} if self.drafts else {"compile_config": self.how}
        return super()._call(items, generation) | own

    @cached_property
    def how(self) -> CompileConfig:
        """The configuration that makes `generate` compile, on a CPU as well."""
        config = CompileConfig(dynamic=False, **self._options)
        config._compile_all_devices = True  # type: ignore[assignment]  # declared without a type
        return config

    @property
    def _options(self) -> Mapping[str, Any]:
        if self.model.device.type != "cpu":
            return {"mode": "reduce-overhead"}
        return {"mode": None, "options": {"freezing": True} if self.freeze else None}

    @cached_property
    def _forward(self) -> Any:
        """The model's pass: compiled after the prompt, eager for it."""
        eager = self.model.forward
        options = self._options if self.model.device.type == "cpu" else {}
        quick = torch.compile(eager, dynamic=True, **options)

        @wraps(eager)
        def forward(*args: Any, **kwargs: Any) -> Any:
            cache, ids = cache_in(kwargs), kwargs["input_ids"]
            return (quick if cache.is_initialized and ids.shape[1] <= WIDEST else eager)(*args, **kwargs)

        return forward

    @contextmanager
    def _routed(self) -> Iterator[None]:
        """Let `generate` call the compiled pass; other modes share the model."""
        if not self.drafts:
            yield
            return
        self.model.forward = self._forward
        try:
            yield
        finally:
            del self.model.forward


def check_compiler(device: str) -> None:
    """See that TorchInductor has the compiler that it needs on a CPU."""
    if device != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        raise UserError("no C++ compiler for torch.compile: install g++") from error
