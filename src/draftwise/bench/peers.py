"""Peers by name, `ENGINE:MODE?options`: built if they are installed, else absent with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from .. import registry
from ..errors import UserError
from .contender import Contender
from .ours import Models, is_model

TRANSFORMERS = ("plain", "assisted", "constant", "heuristic", "threshold", "lookup")
VLLM = ("plain", "ngram", "suffix", "draft")
LLAMACPP = ("plain", "lookup")
ENGINES: Mapping[str, Sequence[str]] = {"transformers": TRANSFORMERS, "llamacpp": LLAMACPP, "vllm": VLLM}


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not be measured, and why."""

    method: str
    reason: str


def names(text: str) -> list[str]:
    """The peers of an option: names with commas; an engine alone stands for all its modes, `all` for all.

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
    """Builds peers over the models of a run, each model loaded once."""

    models: Models
    target: str
    drafters: Sequence[str]
    load: Mapping[str, Any]
    built: dict[str, Any] = field(default_factory=dict)

    def build(self, name: str) -> Contender | Absent:
        """The contender for a name that `names` gave.

        Raises:
            UserError: an unknown option, or one that does not fit.
        """
        spec = registry.parse(name)
        maker: Callable[[str, registry.Spec], Contender | Absent] = getattr(self, f"_{spec.name}")
        return maker(name, spec)

    def _transformers(self, name: str, spec: registry.Spec) -> Contender | Absent:
        from .transformers import MODES, Transformers

        given = dict(spec.options)
        packed = given.pop("packed", "false").lower() in registry.YES
        drafter = given.pop("drafter", "")
        mode = MODES[spec.path](**converted(name, MODES[spec.path], given, ("drafter", "packed")))
        model = self.models.model if packed else self.unpacked
        assistant = None
        if mode.assistant is not None:
            drafter = drafter or next((d for d in self.drafters if is_model(d)), "")
            if not drafter:
                return Absent(name, "no assistant: name a model among the drafters")
            assistant = self._assistant(drafter)
        return Transformers(name, mode, model, assistant, eos=self.models.eos)

    def _llamacpp(self, name: str, spec: registry.Spec) -> Contender | Absent:
        if find_spec("llama_cpp") is None:
            return Absent(name, "llama-cpp-python is not installed")
        return Absent(name, "llama-cpp-python is installed, but this version does not drive it")

    def _vllm(self, name: str, spec: registry.Spec) -> Contender | Absent:
        if find_spec("vllm") is None:
            return Absent(name, "vllm is not installed")
        return Absent(name, "vllm is installed, but this version does not drive it")

    @cached_property
    def unpacked(self) -> Any:
        """The target as Transformers loads it: ours has its weights in another layout on a CPU."""
        from ..models import load_model

        return load_model(self.target, **self.load)

    def _assistant(self, drafter: str) -> Any:
        from ..models import load_model

        spec = registry.parse(drafter)
        path = spec.path if spec.name == "lm" else drafter.partition("?")[0]
        if path not in self.built:
            self.built[path] = load_model(path, **self.load)
        return self.built[path]


def converted(
    name: str, factory: Callable[..., Any], given: Mapping[str, str], others: Sequence[str]
) -> dict[str, Any]:
    """A peer's options as the types of its mode's defaults.

    Raises:
        UserError: an unknown option, or a value that is no number above 0.
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
        if not 0 < options[key] < 10_000:
            raise UserError(f"{name}: {key}={text}: give a positive number")
    return options
