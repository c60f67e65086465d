"""Peers by name, `ENGINE:MODE?options`: built if they are installed, otherwise absent with a reason."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ... import registry
from ...core.roles import window_of
from ...errors import UserError
from ...models.gguf.names import gguf_spec
from ...models.load import resolve
from ..machine import cores, describe
from .contender import Contender
from .ours import Models, is_model

if TYPE_CHECKING:
    from .child import Child

TRANSFORMERS = ("plain", "assisted", "constant", "heuristic", "threshold", "lookup")


def llamacpp_plain(*, context: int = 4096, gpu_layers: int = 0) -> dict[str, Any]:
    """Plain decoding."""
    return {"context": context, "gpu_layers": gpu_layers, "lookup": 0, "ngram": 0}


def llamacpp_lookup(
    *, context: int = 4096, gpu_layers: int = 0, length: int = 10, ngram: int = 2
) -> dict[str, Any]:
    """llama-cpp-python's prompt lookup, with its own defaults."""
    return {"context": context, "gpu_layers": gpu_layers, "lookup": length, "ngram": ngram}


def vllm_plain() -> None:
    """Plain decoding."""


def vllm_ngram(*, length: int = 5, min: int = 1, max: int = 4) -> dict[str, Any]:
    """vLLM's prompt lookup, with the n-gram lengths of ours."""
    spread = {"prompt_lookup_min": min, "prompt_lookup_max": max}
    return {"method": "ngram", "num_speculative_tokens": length} | spread


def vllm_suffix(*, length: int = 16) -> dict[str, Any]:
    """vLLM's suffix decoding, which needs arctic-inference."""
    return {"method": "suffix", "num_speculative_tokens": length}


def vllm_draft(*, length: int = 3) -> dict[str, Any]:
    """vLLM with a draft model."""
    return {"method": "draft_model", "num_speculative_tokens": length}


LLAMACPP = {"plain": llamacpp_plain, "lookup": llamacpp_lookup}
VLLM: dict[str, Callable[..., Any]] = {
    "plain": vllm_plain,
    "ngram": vllm_ngram,
    "suffix": vllm_suffix,
    "draft": vllm_draft,
}
ENGINES: Mapping[str, Sequence[str]] = {
    "transformers": TRANSFORMERS,
    "llamacpp": tuple(LLAMACPP),
    "vllm": tuple(VLLM),
}


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not be measured, and the reason."""

    method: str
    reason: str


def names(text: str) -> list[str]:
    """The peers of an option, separated by commas; an engine alone means all its modes, `all` all peers.

    Raises:
        UserError: an unknown engine or mode.
    """
    found: list[str] = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        for engine in ENGINES if name == "all" else [name]:
            modes = [f"{engine}:{mode}" for mode in ENGINES.get(engine, ())]
            found += [n for n in modes or [_checked(engine)] if n not in found]
    return found


def _checked(name: str) -> str:
    spec = registry.parse(name)
    if spec.path not in ENGINES.get(spec.name, ()):
        known = ", ".join(f"{engine}:{mode}" for engine, modes in ENGINES.items() for mode in modes)
        raise UserError(f"no peer {name!r}: choose from {known}, or an engine for all its modes")
    return name


@dataclass
class Peers:
    """Builds peers for the models of a run; each model is loaded once."""

    models: Models
    target: str
    drafters: Sequence[str]
    load: Mapping[str, Any]
    built: dict[str, Any] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    scratch: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def build(self, name: str) -> Contender | Absent:
        """The contender for a name from `names`.

        Raises:
            UserError: an unknown option, or an invalid one.
        """
        spec = registry.parse(name)
        if spec.name != "llamacpp" and gguf_spec(self.target) is not None:
            return Absent(name, f"{spec.name} is not given GGUF files: compare with llamacpp")
        maker: Callable[[str, registry.Spec], Contender | Absent] = getattr(self, f"_{spec.name}")
        return maker(name, spec)

    def _transformers(self, name: str, spec: registry.Spec) -> Contender | Absent:
        from .transformers import MODES, Transformers

        given = dict(spec.options)
        packed = given.pop("packed", "false").lower()
        if packed not in registry.YES + registry.NO:
            raise UserError(f"{name}: packed={packed}: write true or false")
        drafter = given.pop("drafter", "")
        mode = MODES[spec.path](**converted(name, MODES[spec.path], given, ("drafter", "packed")))
        model = self.models.model if packed in registry.YES else self.unpacked
        assistant = None
        if mode.assistant is not None:
            drafter = drafter or next((d for d in self.drafters if is_model(d)), "")
            if not drafter:
                return Absent(name, "no assistant: name a model among the drafters")
            assistant = self._assistant(drafter)
        return Transformers(name, mode, model, assistant, eos=self.models.eos)

    def _llamacpp(self, name: str, spec: registry.Spec) -> Contender | Absent:
        """llama.cpp with converted weights in float32, or the user's own file; as many threads as ours."""
        if find_spec("llama_cpp") is None:
            return Absent(name, "llama-cpp-python is not installed")
        from .child import Child, ChildError

        given = dict(spec.options)
        file = given.pop("file", "")
        mode = LLAMACPP[spec.path]
        options = mode(**converted(name, mode, given, ("file",)))
        try:
            hello = options | {
                "file": file or str(self.converted),
                "threads": describe()["threads"] or cores(),
            }
            hello["context"] = min(options["context"], window_of(self.models.target))
            command = [sys.executable, "-m", "draftwise.measure.bench.llamacpp"]
            child = Child(name, command, hello, eos=self.models.eos)
        except (ChildError, UserError) as error:
            return Absent(name, str(error))
        self.children.append(child)
        return child

    def _vllm(self, name: str, spec: registry.Spec) -> Contender | Absent:
        """vLLM's own ways of drafting, in float32 on a CPU like ours; one prompt at a time."""
        if find_spec("vllm") is None:
            return Absent(name, "vllm is not installed")
        from .child import Child, ChildError

        given, mode = dict(spec.options), VLLM[spec.path]
        drafter = given.pop("drafter", "") if spec.path == "draft" else ""
        speculative = mode(**converted(name, mode, given, ("drafter",) if spec.path == "draft" else ()))
        if speculative is not None and spec.path == "draft":
            drafter = drafter or next((d for d in self.drafters if is_model(d)), "")
            if not drafter:
                return Absent(name, "no draft model: name one among the drafters")
            speculative["model"] = resolve(model_of(drafter))
        dtype = self.load.get("dtype", "auto")
        hello = {
            "model": resolve(self.target),
            "context": min(4096, window_of(self.models.target)),
            "dtype": "float32" if dtype == "auto" and describe()["gpu"] is None else dtype,
            "threads": describe()["threads"] or cores(),
            "speculative": speculative,
        }
        try:
            command = [sys.executable, "-m", "draftwise.measure.bench.vllm"]
            child = Child(name, command, hello, eos=self.models.eos)
        except ChildError as error:
            return Absent(name, str(error))
        self.children.append(child)
        return child

    @cached_property
    def converted(self) -> Path:
        """The target as a GGUF file: its own, or one that `close` removes."""
        if (own := gguf_spec(self.target)) is not None:
            return Path(own.path).expanduser().absolute()
        from ...models.gguf.export import write_gguf

        path = Path(self.scratch.name) / "target.gguf"
        write_gguf(self.unpacked, path)
        return path

    def close(self) -> None:
        """End the child processes, and remove their temporary files."""
        for child in self.children:
            child.close()
        self.scratch.cleanup()

    @cached_property
    def unpacked(self) -> Any:
        """The target as Transformers loads it, since ours has packed weights on a CPU."""
        from ...models.load import load_model

        return load_model(self.target, **self.load)

    def _assistant(self, drafter: str) -> Any:
        from ...models.load import load_model

        path = model_of(drafter)
        if path not in self.built:
            self.built[path] = load_model(path, **self.load)
        return self.built[path]


def model_of(drafter: str) -> str:
    """The model of a drafter's name."""
    spec = registry.parse(drafter)
    return spec.path if spec.name == "lm" else drafter.partition("?")[0]


def converted(
    name: str, factory: Callable[..., Any], given: Mapping[str, str], others: Sequence[str]
) -> dict[str, Any]:
    """A peer's options, converted to the types of its mode's defaults.

    Raises:
        UserError: an unknown option, or a value that is not a number above 0.
    """
    known = {p.name: type(p.default) for p in inspect.signature(factory).parameters.values()}
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            raise UserError(f"{name} has no option {key!r}: choose from {', '.join([*known, *others])}")
        try:
            options[key] = known[key](text)
        except ValueError:
            raise UserError(f"{name}: {key}={text} is not {known[key].__name__}") from None
        if not 0 < options[key] < 1_000_000:
            raise UserError(f"{name}: {key}={text}: give a positive number")
    return options
