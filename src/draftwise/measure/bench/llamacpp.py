"""llama.cpp through llama-cpp-python, as a child process: python -m draftwise.measure.bench.llamacpp.

The protocol is the one of `child`. It loads `{"file", "context", "threads", "gpu_layers", "flash", "loop",
"cache"}`, for prompt lookup also `{"lookup", "ngram"}`, and for a draft model `{"draft", "length",
"confidence"}`. With the loop `fast` greedy texts go through `llamacpp_loop`, which has less overhead than
llama-cpp-python's `Llama.generate`; with `library`, and where tokens are drawn, through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from time import perf_counter
from typing import Any

from .child import Write, serve
from .llamacpp_loop import KINDS, Count, ModelDraft, Reader, faster_flash, greedy

Answer = dict[str, Any]


def load(asked: Mapping[str, Any]) -> tuple[Write, Answer]:
    """Load a model; returns the function that writes one text with it, and what was chosen here."""
    engine = Engine(asked)
    return engine.write, engine.settings()


class Engine:
    """A loaded model and its way of drafting."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.asked = asked
        shape = {name: asked[name] for name in ("context", "threads", "cache")}
        self.flash = asked["flash"] == "on"
        if asked["flash"] == "auto":
            self.flash = faster_flash(asked["file"], **shape)
        self.draft = self._draft(shape)
        _ = self.reader if asked["loop"] == "fast" else self.library

    def settings(self) -> Answer:
        """Return what was chosen here, in words."""
        info = import_module("llama_cpp").llama_print_system_info().decode().strip(" |")
        parts = [part.split("=") for part in info.split("|")]
        on = [name.split()[-1] for name, *value in parts if value and value[0].strip() == "1"]
        return {"flash_attention": self.flash, "instructions": " ".join(on)}

    def write(self, asked: Mapping[str, Any]) -> Answer:
        """Write one text."""
        drawn = asked["temperature"] > 0.0
        return (self._generate if drawn or self.asked["loop"] == "library" else self._greedy)(asked)

    @cached_property
    def reader(self) -> Reader:
        """The context of the fast loop."""
        return self._reader(self.asked["file"], self.flash)

    @cached_property
    def library(self) -> Any:
        """llama-cpp-python's own object, for its own loop."""
        return import_module("llama_cpp").Llama(
            model_path=self.asked["file"],
            n_ctx=self.asked["context"],
            n_threads=self.asked["threads"],
            n_threads_batch=self.asked["threads"],
            n_gpu_layers=self.asked["gpu_layers"],
            flash_attn=self.flash,
            type_k=KINDS[self.asked["cache"]],
            type_v=KINDS[self.asked["cache"]],
            draft_model=self.draft,
            logits_all=self.draft is not None,  # otherwise its buffer is too small for a draft's rows
            verbose=False,
        )

    def _draft(self, shape: Mapping[str, Any]) -> Any:
        """Return a `LlamaDraftModel`: the library's prompt lookup, or a model."""
        if file := self.asked.get("draft"):
            reader = self._reader(
                file, faster_flash(file, **shape) if self.asked["flash"] == "auto" else self.flash
            )
            return ModelDraft(reader, length=self.asked["length"], confidence=self.asked["confidence"])
        if length := self.asked.get("lookup"):
            lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
            return lookup(max_ngram_size=self.asked["ngram"], num_pred_tokens=length)
        return None

    def _reader(self, file: str, flash: bool) -> Reader:
        from ...models.gguf import library

        model = library.load(file, n_gpu_layers=self.asked["gpu_layers"])
        shape = {name: self.asked[name] for name in ("context", "threads", "cache")}
        return Reader(model, flash=flash, **shape)

    def _greedy(self, asked: Mapping[str, Any]) -> Answer:
        count, tokens = Count(), []
        ends = frozenset(asked["eos"])
        start = perf_counter()
        for token in greedy(self.reader, asked["ids"], asked["max_new_tokens"], self.draft, count):
            tokens.append(token)
            if token in ends:
                break
        seconds = perf_counter() - start
        work = {"rounds": count.rounds, "drafted": count.drafted, "accepted": count.accepted}
        return {"tokens": tokens, "seconds": seconds, **work}

    def _generate(self, asked: Mapping[str, Any]) -> Answer:
        model, tokens, passes = self.library, [], _Passes(self.library.eval)
        model.eval = passes
        try:
            model.reset()
            model.set_seed(asked["seed"] % 2**32)
            heat = asked["temperature"]
            shape = {"temp": heat, "top_p": 1.0, "min_p": 0.0, "top_k": 0 if heat else 1}
            start = perf_counter()
            for token in model.generate(list(asked["ids"]), **shape):
                tokens.append(int(token))
                if len(tokens) == asked["max_new_tokens"] or token in asked["eos"]:
                    break
            seconds = perf_counter() - start
        finally:
            model.eval = passes.run
        drafted = sum(passes.lengths[1:]) - len(passes.lengths[1:])
        return {"tokens": tokens, "seconds": seconds, "rounds": len(passes.lengths), "drafted": drafted}


class _Passes:
    """Counts the tokens of each call of `Llama.eval`."""

    def __init__(self, run: Callable[[Any], None]) -> None:
        self.run, self.lengths = run, list[int]()

    def __call__(self, tokens: Any) -> None:
        self.lengths.append(len(tokens))
        self.run(tokens)


if __name__ == "__main__":
    serve(load)
