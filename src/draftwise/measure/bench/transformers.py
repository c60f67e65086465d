"""Transformers' own ways of decoding as contenders, in this process.

Every mode has its own generation settings, which are set on the models during a call: Transformers reads the
assistant's there, and its heuristic updates them. A hook on the target counts passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from logging import ERROR
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from .contender import Generation, Item, Peer, Text


def assistant_settings(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assistant's generation settings; those of `assisted` are the installed version's own.

    The heuristic has two more tokens after a fully accepted draft, otherwise one fewer, from call to call.
    The threshold, of a token's probability, is refitted if scikit-learn is installed.
    """
    if "length" not in options:
        return {}
    return {
        "num_assistant_tokens": options["length"],
        "num_assistant_tokens_schedule": "heuristic" if kind == "heuristic" else "constant",
        "assistant_confidence_threshold": options.get("threshold", 0.0),
    }


class Transformers(Peer):
    """One mode of `generate`, with its options as `peers.ENGINES` has them, on a model and any assistant."""

    engine = "transformers"

    def __init__(
        self,
        name: str,
        kind: str,
        options: Mapping[str, Any],
        model: Any,
        assistant: Any = None,
        *,
        eos: frozenset[int],
    ) -> None:
        self.name, self.model, self.assistant, self.eos = name, model, assistant, eos
        self.assisted = {} if assistant is None else assistant_settings(kind, options)
        self.call: dict[str, Any] = {}
        if kind.endswith("lookup"):  # what followed an earlier occurrence of the text's last tokens
            names = {"prompt_lookup_num_tokens": "length", "max_matching_ngram_size": "ngram"}
            self.call = {name: options[option] for name, option in names.items()}
        self.config = self._fresh()
        self.drafts = assistant is not None or bool(self.call)
        self.max_batch = 1 if self.drafts else 0  # assisted generation takes one prompt at a time

    @property
    def settings(self) -> dict[str, Any]:
        loaded = {"dtype": str(self.model.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
        kinds = {"attention": self.model.config._attn_implementation}
        draft = {} if self.assistant is None else {"assistant": self.assistant.name_or_path}
        return loaded | kinds | draft | self.assisted | self.call

    def warm(self, items: Sequence[Item], generation: Generation) -> None:
        """Run one call, after which the settings that it may have changed are restored."""
        self.decode(items, generation)
        self.config = self._fresh()

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        """Run one call of `generate`; the prompts are padded on the left."""
        longest = max(len(item.ids) for item in items)
        pads = [longest - len(item.ids) for item in items]
        device = self.model.device
        ids = torch.tensor([[0] * p + list(i.ids) for p, i in zip(pads, items, strict=True)], device=device)
        mask = torch.tensor([[0] * p + [1] * (longest - p) for p in pads], device=device)
        torch.manual_seed(generation.seed_of(items[0]))
        first = FirstTokens(longest)
        call = self._call(items, generation) | {"stopping_criteria": StoppingCriteriaList([first])}
        with quiet(), self._own_settings(), passes(self.model if self.drafts else None) as lengths:
            start = perf_counter()
            out = self.model.generate(ids, attention_mask=mask, **call).tolist()
            seconds = perf_counter() - start
        texts = [self._cut(row[longest:]) for row in out]
        rounds = len(lengths) if self.drafts else len(out[0]) - longest
        total = sum(map(len, texts))
        if len(texts) > 1:
            return [Text(t, seconds * len(t) / total, len(t)) for t in texts]
        drafted = sum(lengths) - longest - (rounds - 1) if self.drafts else 0
        accepted, ttft_s = max(0, total - rounds), first.seconds - start
        return [Text(texts[0], seconds, rounds, drafted, accepted, ttft_s, first.tokens)]

    def memory(self) -> Any:
        return None if self.config is None else {"num_assistant_tokens": self.config.num_assistant_tokens}

    def restore(self, memory: Any) -> None:
        if memory is not None:
            self.config.num_assistant_tokens = memory["num_assistant_tokens"]

    def _fresh(self) -> Any:
        if self.assistant is None:
            return None
        config = deepcopy(self.assistant.generation_config)
        for key, value in self.assisted.items():
            setattr(config, key, value)
        return config

    @contextmanager
    def _own_settings(self) -> Iterator[None]:
        """Give the target no settings of its authors, such as a penalty: all contenders decode alike."""
        plain: Any = GenerationConfig
        settings = {self.model: plain()} | ({} if self.assistant is None else {self.assistant: self.config})
        before = [(model, model.generation_config) for model in settings]
        for model, own in settings.items():
            model.generation_config = own
        try:
            yield
        finally:
            for model, own in before:
                model.generation_config = own

    def _call(self, items: Sequence[Item], generation: Generation) -> dict[str, Any]:
        sampling = {"do_sample": True, "temperature": generation.temperature, "top_k": 0, "top_p": 1.0}
        return {
            "max_new_tokens": generation.max_new_tokens,
            "eos_token_id": sorted(self.eos) or None,
            "pad_token_id": min(self.eos, default=0),
            **(sampling if generation.temperature else {"do_sample": False}),
            **({"assistant_model": self.assistant} if self.assistant is not None else {}),
            **self.call,
        }

    def _cut(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """A text up to its first end token; padding follows."""
        for i, token in enumerate(tokens):
            if token in self.eos:
                return tuple(tokens[: i + 1])
        return tuple(tokens)


class FirstTokens(StoppingCriteria):
    """Stops nothing; notes when the first tokens after a prompt are there, and how many."""

    def __init__(self, prompt: int) -> None:
        self.prompt, self.seconds, self.tokens = prompt, 0.0, 0

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        if not self.tokens:
            if input_ids.is_cuda:
                torch.cuda.synchronize(input_ids.device)
            self.seconds, self.tokens = perf_counter(), input_ids.shape[1] - self.prompt
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@contextmanager
def passes(model: Any) -> Iterator[list[int]]:
    """Give the number of tokens in each pass of a model while the context is active; none without a model."""
    lengths: list[int] = []
    if model is None:
        yield lengths
        return

    def count(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        lengths.append(int(ids.shape[1]))

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield lengths
    finally:
        handle.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Transformers' warnings, which its own assisted generation causes."""
    before = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
