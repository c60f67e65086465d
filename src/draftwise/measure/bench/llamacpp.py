"""llama.cpp through llama-cpp-python, as a child process: python -m draftwise.measure.bench.llamacpp.

The protocol is the one of `child`. It loads `{"file", "context", "threads", "gpu_layers", "flash", "loop",
"cache"}`, for prompt lookup also `{"lookup", "ngram"}`, and for a draft model `{"draft", "length",
"confidence"}`. With the loop `fast` greedy texts go through `greedy`: `llama_decode` and the most likely
token of each row, as in llama.cpp's own programs in C++, with any draft of llama-cpp-python's
`LlamaDraftModel`. With `library`, and where tokens are drawn, they go through llama-cpp-python's
`Llama.generate`, which has more overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.gguf import library
from ..machine import llamacpp_features
from .child import ChildError, Write, serve

Answer = dict[str, Any]
Drafter = Callable[[NDArray[np.int32]], NDArray[np.int32]]
KINDS = {"f32": 0, "f16": 1}  # enum ggml_type
BATCH = 512  # tokens of a pass: llama.cpp's default
PROBE_READ, PROBE_WRITTEN, PROBES = 64, 16, 3


def load(options: Mapping[str, Any]) -> tuple[Write, Answer]:
    """Load a model; returns the function that writes one text with it, and what was chosen here."""
    engine = Engine(options)
    return engine.write, engine.settings()


class Engine:
    """A loaded model and its way of drafting."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.shape: dict[str, Any] = {name: options[name] for name in ("context", "threads", "cache")}
        self.flash = self._choose_flash(options["file"])
        self.draft = self._make_draft()
        _ = self.reader if options["loop"] == "fast" else self.llama

    def settings(self) -> Answer:
        info = library.library().llama_print_system_info().decode("utf-8", "replace")
        return {"flash_attention": self.flash, "instructions": " ".join(llamacpp_features(info))}

    def write(self, request: Mapping[str, Any]) -> Answer:
        is_sampled = request["temperature"] > 0.0
        return (self._generate if is_sampled or self.options["loop"] == "library" else self._greedy)(request)

    @cached_property
    def reader(self) -> Reader:
        """The context of the fast loop."""
        return self._read(self.options["file"], self.flash)

    @cached_property
    def llama(self) -> Any:
        """llama-cpp-python's own object, for its own loop."""
        return import_module("llama_cpp").Llama(
            model_path=self.options["file"],
            n_ctx=self.options["context"],
            n_threads=self.options["threads"],
            n_threads_batch=self.options["threads"],
            n_gpu_layers=self.options["gpu_layers"],
            flash_attn=self.flash,
            type_k=KINDS[self.options["cache"]],
            type_v=KINDS[self.options["cache"]],
            draft_model=self.draft,
            logits_all=self.draft is not None,  # otherwise its buffer is too small for a draft's rows
            verbose=False,
        )

    def _choose_flash(self, file: str) -> bool:
        flash, layers = self.options["flash"], self.options["gpu_layers"]
        return faster_flash(file, gpu_layers=layers, **self.shape) if flash == "auto" else flash == "on"

    def _make_draft(self) -> Any:
        """Return a `LlamaDraftModel`: the library's prompt lookup, or a model."""
        if file := self.options.get("draft"):
            reader = self._read(file, self._choose_flash(file))
            return ModelDraft(reader, length=self.options["length"], confidence=self.options["confidence"])
        if length := self.options.get("lookup"):
            lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
            return lookup(max_ngram_size=self.options["ngram"], num_pred_tokens=length)
        return None

    def _read(self, file: str, flash: bool) -> Reader:
        model = library.load(file, n_gpu_layers=self.options["gpu_layers"])
        return Reader(model, flash=flash, **self.shape)

    def _greedy(self, request: Mapping[str, Any]) -> Answer:
        count, tokens, ends = Count(), [], frozenset(request["eos"])
        start = first = perf_counter()
        for token in greedy(self.reader, request["ids"], request["max_new_tokens"], self.draft, count):
            tokens.append(token)
            first = perf_counter() if len(tokens) == 1 else first
            if token in ends:
                break
        seconds = perf_counter() - start
        return {"tokens": tokens, "seconds": seconds, "ttft_s": first - start, **asdict(count)}

    def _generate(self, request: Mapping[str, Any]) -> Answer:
        model, tokens, passes = self.llama, [], _Passes(self.llama.eval)
        model.eval = passes
        try:
            model.reset()
            model.set_seed(request["seed"] % 2**32)
            heat = request["temperature"]
            shape = {"temp": heat, "top_p": 1.0, "min_p": 0.0, "top_k": 0 if heat else 1}
            start = first = perf_counter()
            for token in model.generate(list(request["ids"]), **shape):
                tokens.append(int(token))
                first = perf_counter() if len(tokens) == 1 else first
                if len(tokens) == request["max_new_tokens"] or token in request["eos"]:
                    break
            seconds = perf_counter() - start
        finally:
            model.eval = passes.run
        drafted = sum(passes.lengths[1:]) - len(passes.lengths[1:])
        times = {"seconds": seconds, "ttft_s": first - start}
        return {"tokens": tokens, **times, "rounds": len(passes.lengths), "drafted": drafted}


class _Passes:
    """Counts the tokens of each call of `Llama.eval`."""

    def __init__(self, run: Callable[[Any], None]) -> None:
        self.run, self.lengths = run, list[int]()

    def __call__(self, tokens: Any) -> None:
        self.lengths.append(len(tokens))
        self.run(tokens)


# -- the fast loop ---------------------------------------------------------------------------------------


class Reader:
    """A model with one text in its KV cache; `at` is the length of that text."""

    def __init__(self, model: Any, *, context: int, threads: int, flash: bool, cache: str) -> None:
        self.api = api = library.library()
        settings = api.llama_context_default_params()
        self.most = most = min(BATCH, context)
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, most, most
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else 0
        settings.type_k = settings.type_v = KINDS[cache]
        settings.no_perf = True
        self.context = api.llama_init_from_model(model, settings)
        if not self.context:
            raise ChildError(f"llama.cpp has no memory for a context of {context} tokens")
        self.memory = api.llama_get_memory(self.context)
        self.width = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self.at = 0
        self.batch = api.llama_batch_init(most, 0, 1)
        names = ("token", "pos", "n_seq_id", "logits")
        arrays = [np.ctypeslib.as_array(getattr(self.batch, name), (most,)) for name in names]
        self.tokens, self.places, counts, self.has_logits = arrays
        counts[:] = 1
        for i in range(most):
            self.batch.seq_id[i][0] = 0

    def cut(self, length: int) -> None:
        """Forget all tokens from a position on."""
        if length < self.at:
            if not self.api.llama_memory_seq_rm(self.memory, 0, length, -1):
                raise ChildError("llama.cpp cannot take back tokens of this model")
            self.at = length

    def read(self, tokens: Sequence[int], rows: int = 1) -> NDArray[np.float32]:
        """Read tokens; returns the logits after the last `rows` of them, until the next call."""
        rows_read = np.empty((0, self.width), np.float32)
        for start in range(0, len(tokens), self.most):
            part = tokens[start : start + self.most]
            n = len(part)
            self.tokens[:n] = part
            self.places[:n] = range(self.at, self.at + n)
            self.has_logits[:n] = 0
            self.has_logits[max(0, n - rows) : n] = 1
            self.batch.n_tokens = n
            if code := self.api.llama_decode(self.context, self.batch):
                raise ChildError(f"llama_decode returned {code} at position {self.at}")
            self.at += n
            logits = self.api.llama_get_logits(self.context)
            rows_read = np.ctypeslib.as_array(logits, (min(rows, n), self.width))
        return rows_read

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)


@dataclass(slots=True)
class Count:
    """The work of one text."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


def greedy(
    reader: Reader, ids: Sequence[int], most: int, draft: Drafter | None, count: Count
) -> Iterator[int]:
    """The tokens of a greedy text, at most `most`; the caller stops at an end token."""
    reader.cut(0)
    text, new, remaining = np.array(ids, np.int32), list(ids), most
    proposed: list[int] = []
    while remaining:
        choices = reader.read([*new, *proposed], len(proposed) + 1).argmax(1).tolist()
        right = 0
        while right < len(proposed) and choices[right] == proposed[right]:
            right += 1
        count.rounds, count.drafted = count.rounds + 1, count.drafted + len(proposed)
        count.accepted += right
        yield from choices[: right + 1]
        remaining -= right + 1
        reader.cut(reader.at - len(proposed) + right)
        text = np.append(text, np.array(choices[: right + 1], np.int32))
        new = choices[right : right + 1]
        proposed = [] if draft is None or remaining < 2 else draft(text)[: remaining - 1].tolist()


class ModelDraft:
    """A draft model, greedy, as a `LlamaDraftModel`: it reads only what its KV cache does not hold yet.

    It drafts up to `length` tokens, and stops before one whose probability is below `confidence`.
    """

    def __init__(self, reader: Reader, *, length: int, confidence: float) -> None:
        self.reader, self.length, self.confidence = reader, length, confidence
        self.cached = np.empty(0, np.int32)

    def __call__(self, input_ids: NDArray[np.int32], /, **_: Any) -> NDArray[np.int32]:
        """Return what may follow these tokens."""
        length = min(len(self.cached), len(input_ids) - 1)
        differ = np.flatnonzero(self.cached[:length] != input_ids[:length])
        same = int(differ[0]) if len(differ) else length
        self.reader.cut(same)
        new, drafted = input_ids[same:].tolist(), list[int]()
        while len(drafted) < self.length:
            logits = self.reader.read(new)[0]
            token = int(logits.argmax())
            if self.confidence and np.exp(logits - logits[token]).sum() * self.confidence > 1.0:
                break
            drafted.append(token)
            new = [token]
        self.cached = np.append(input_ids, np.array(drafted, np.int32))[: self.reader.at].astype(np.int32)
        return np.array(drafted, np.int32)


def faster_flash(file: str, *, context: int, threads: int, cache: str, gpu_layers: int = 0) -> bool:
    """Return whether flash attention is faster for this model here: a short text is written both ways.

    Never with keys and values in float32, which it would round.
    """
    if cache == "f32":
        return False
    model = library.load(file, n_gpu_layers=gpu_layers)
    readers = {
        flash: Reader(model, flash=flash, context=context, threads=threads, cache=cache)
        for flash in (False, True)
    }
    ids = [i % readers[False].width for i in range(1, min(PROBE_READ, context // 2) + 1)]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(PROBES + 1):
        for flash, reader in readers.items():
            start = perf_counter()
            for _ in greedy(reader, ids, min(PROBE_WRITTEN, context // 4), None, Count()):
                pass
            seconds[flash].append(perf_counter() - start)
    for reader in readers.values():
        reader.close()
    library.library().llama_model_free(model)
    return min(seconds[True][1:]) < min(seconds[False][1:])


if __name__ == "__main__":
    serve(load)
