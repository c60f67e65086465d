"""llama.cpp through llama-cpp-python, as a child process: python -m draftwise.measure.bench.llamacpp.

The protocol is the one of `child`. It loads `{"file", "context", "threads", "gpu_layers", "lookup",
"ngram"}`; `lookup` is its draft length, 0 for plain decoding.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any, TextIO


def serve(answers: TextIO) -> None:
    """Answer each line until the input ends."""
    write: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if write is None:
                write = load(asked)
                told: dict[str, Any] = {"ready": True}
            else:
                told = write(asked)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)


def load(asked: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Load a model; returns the function that writes one text with it."""
    draft = _lookup(asked["lookup"], asked["ngram"]) if asked["lookup"] else None
    model = import_module("llama_cpp").Llama(
        model_path=asked["file"],
        n_ctx=asked["context"],
        n_threads=asked["threads"],
        n_threads_batch=asked["threads"],
        n_gpu_layers=asked["gpu_layers"],
        draft_model=draft,
        logits_all=draft is not None,  # otherwise its buffer is too small for a draft's rows
        verbose=False,
    )
    passes: list[int] = []
    run = model.eval

    def counted(tokens: Any) -> None:
        passes.append(len(tokens))
        run(tokens)

    model.eval = counted

    def write(asked: Mapping[str, Any]) -> dict[str, Any]:
        passes.clear()
        model.reset()
        model.set_seed(asked["seed"] % 2**32)
        heat = asked["temperature"]
        shape = {"temp": heat, "top_p": 1.0, "min_p": 0.0, "top_k": 0 if heat else 1}
        tokens: list[int] = []
        start = perf_counter()
        for token in model.generate(list(asked["ids"]), **shape):
            tokens.append(int(token))
            if len(tokens) == asked["max_new_tokens"] or token in asked["eos"]:
                break
        seconds = perf_counter() - start
        drafted = sum(passes[1:]) - len(passes[1:])
        return {"tokens": tokens, "seconds": seconds, "rounds": len(passes), "drafted": drafted}

    return write


def _lookup(length: int, ngram: int) -> Any:
    """The library's own prompt lookup."""
    lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
    return lookup(max_ngram_size=ngram, num_pred_tokens=length)


if __name__ == "__main__":
    # What the library prints goes to stderr; only answers go to the parent process.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        serve(answers)
