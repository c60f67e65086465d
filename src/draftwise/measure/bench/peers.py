"""Peers by name, `ENGINE:MODE?options`: built if they are installed, otherwise absent with a reason."""

from __future__ import annotations

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
from ...models.gguf.library import find_file
from ...models.load import resolve
from ...specs import parse_drafter, parse_target, split_names
from ..machine import cores, describe
from .contender import Contender
from .ours import Models

if TYPE_CHECKING:
    from .child import Child


Options = Mapping[str, Any]
"""Defaults by name; a tuple has the choices, of which the first is the default."""

COMPILED: Options = {"slots": 128, "freeze": False}
LLAMACPP: Options = {
    "context": 4096,
    "gpu_layers": 0,
    "flash": ("auto", "on", "off"),
    "loop": ("fast", "library"),
    "cache": ("f16", "f32"),
}
ENGINES: Mapping[str, Mapping[str, Options]] = {
    "transformers": {
        "plain": {},
        "assisted": {},  # with the defaults of the installed version
        "constant": {"length": 5},
        "heuristic": {"length": 20},
        "threshold": {"threshold": 0.4, "length": 20},
        "lookup": {"length": 10, "ngram": 2},
        "compiled": COMPILED,
        "compiled-lookup": {"length": 10, "ngram": 2, **COMPILED},
        "compiled-assisted": COMPILED,
    },
    "llamacpp": {
        "plain": LLAMACPP,
        "lookup": {**LLAMACPP, "length": 10, "ngram": 2},  # llama-cpp-python's own defaults
        "draft": {**LLAMACPP, "length": 3, "confidence": 0.0},  # those of llama.cpp's own programs
    },
    "vllm": {
        "plain": {},
        "ngram": {"length": 5, "min": 1, "max": 4},  # with the n-gram lengths of ours
        "suffix": {"length": 16},  # needs arctic-inference
        "draft": {"length": 3},
    },
}
MODULES = {"llamacpp": ("llama_cpp", "llama-cpp-python"), "vllm": ("vllm", "vllm")}  # and packages


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not be measured, and the reason."""

    method: str
    reason: str


def names(text: str) -> list[str]:
    """Return the peers named in an option; an engine alone means all its modes, `all` all peers.

    Raises:
        UserError: an unknown engine or mode, or an empty name.
    """
    peers: list[str] = []
    for name in split_names(text, "--peers"):
        for engine in ENGINES if name == "all" else [name]:
            modes = [f"{engine}:{mode}" for mode in ENGINES.get(engine, ())]
            peers += [n for n in modes or [_check_name(engine)] if n not in peers]
    return peers


def _check_name(name: str) -> str:
    spec = registry.parse(name)
    if spec.path not in ENGINES.get(spec.name, ()):
        names = ", ".join(f"{engine}:{mode}" for engine, modes in ENGINES.items() for mode in modes)
        raise UserError(f"no peer {name!r}: choose from {names}, or an engine for all its modes")
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
        """Build the contender for a name from `names`.

        Raises:
            UserError: an unknown option, or an invalid one.
        """
        spec = registry.parse(name)
        if spec.name != "llamacpp" and parse_target(self.target).is_gguf:
            return Absent(name, f"{spec.name} is not given GGUF files: compare with llamacpp")
        if (module := MODULES.get(spec.name)) and find_spec(module[0]) is None:
            return Absent(name, f"{module[1]} is not installed")
        maker: Callable[[str, registry.Spec], Contender | Absent] = getattr(self, f"_{spec.name}")
        return maker(name, spec)

    def _transformers(self, name: str, spec: registry.Spec) -> Contender | Absent:
        from .transformers import Transformers, make_mode

        texts, others = dict(spec.options), ("drafter", "packed")
        text = texts.pop("packed", "false")
        packed = read_switch(f"{name}: packed={text}", text)
        drafter = texts.pop("drafter", "")
        mode = make_mode(spec.path, read_options(name, ENGINES["transformers"][spec.path], texts, others))
        model = self.models.model if packed else self.unpacked
        assistant = None
        if mode.assistant is not None:
            drafter = drafter or self._first_model(gguf=False)
            if not drafter:
                return Absent(name, "no assistant: name a model among the drafters")
            assistant = self._assistant(drafter)
        if not mode.slots:
            return Transformers(name, mode, model, assistant, eos=self.models.eos)
        if packed:
            raise UserError(f"{name}: packed weights are not compiled: leave out packed")
        from .compiled import Compiled, check_compiler

        try:
            check_compiler(model.device.type)
        except UserError as error:
            return Absent(name, str(error))
        return Compiled(name, mode, model, assistant, eos=self.models.eos)

    def _llamacpp(self, name: str, spec: registry.Spec) -> Contender | Absent:
        """Build llama.cpp with converted weights in float32, or the user's own file; with our threads."""
        texts, drafts = dict(spec.options), spec.path == "draft"
        others = ("file", "drafter") if drafts else ("file",)
        file, drafter = (texts.pop(key, "") if key in others else "" for key in ("file", "drafter"))
        hello = read_options(name, ENGINES["llamacpp"][spec.path], texts, others)
        drafter = drafter or (self._first_model() if drafts else "")
        if drafts and not drafter:
            return Absent(name, "no draft model: name one among the drafters, or a GGUF file with drafter")
        hello["context"] = min(hello["context"], window_of(self.models.target))
        if spec.path == "lookup":
            hello["lookup"] = hello.pop("length")
        shown = {"file": file or self._weights(self.target), "flash": None}
        try:
            hello["file"] = file or self.gguf(self.target)
            if drafts:
                hello["draft"] = self.gguf(drafter)
                shown["draft"] = self._weights(drafter)
        except UserError as error:
            return Absent(name, str(error))
        return self._child(name, hello, drafts=spec.path != "plain", shown=shown)

    def _vllm(self, name: str, spec: registry.Spec) -> Contender | Absent:
        """Build vLLM's own ways of drafting, in float32 on a CPU like ours; one prompt at a time."""
        texts, drafts = dict(spec.options), spec.path == "draft"
        drafter = texts.pop("drafter", "") if drafts else ""
        options = read_options(name, ENGINES["vllm"][spec.path], texts, ("drafter",) if drafts else ())
        speculative: dict[str, Any] | None = None
        if spec.path != "plain":
            method = "draft_model" if drafts else spec.path
            speculative = {"method": method, "num_speculative_tokens": options.pop("length")}
            speculative |= {f"prompt_lookup_{key}": value for key, value in options.items()}
        if speculative and drafts:
            drafter = drafter or self._first_model(gguf=False)
            if not drafter:
                return Absent(name, "no draft model: name one among the drafters")
            speculative["model"] = resolve(parse_drafter(drafter).path)
        dtype = self.load.get("dtype", "auto")
        hello = {
            "model": resolve(self.target),
            "context": min(4096, window_of(self.models.target)),
            "dtype": "float32" if dtype == "auto" and describe()["gpu"] is None else dtype,
            "speculative": speculative,
        }
        return self._child(name, hello, drafts=speculative is not None)

    def _child(self, name: str, hello: dict[str, Any], **options: Any) -> Contender | Absent:
        """Start a peer in a process of its own, with as many threads as ours."""
        from .child import Child, ChildError

        hello["threads"] = describe()["threads"] or cores()
        command = [sys.executable, "-m", f"draftwise.measure.bench.{name.partition(':')[0]}"]
        try:
            child = Child(name, command, hello, eos=self.models.eos, **options)
        except ChildError as error:
            return Absent(name, str(error))
        self.children.append(child)
        return child

    def _first_model(self, *, gguf: bool = True) -> str:
        """Return the first model among the drafters, or ""."""
        kinds = ("lm", "gguf") if gguf else ("lm",)
        return next((name for name in self.drafters if parse_drafter(name).name in kinds), "")

    def gguf(self, name: str) -> str:
        """Return a model as a GGUF file: itself if it is one, else converted once, until `close`."""
        spec = parse_drafter(name)
        if spec.is_gguf:
            return str(find_file(spec.path).absolute())
        from ...models.gguf.export import write_gguf

        key = f"{spec.path} as gguf"
        if key not in self.built:
            path = Path(self.scratch.name) / f"{len(self.built)}.gguf"
            write_gguf(self.unpacked if name == self.target else self._assistant(name), path)
            self.built[key] = str(path)
        return str(self.built[key])

    def _weights(self, name: str) -> str:
        spec = parse_drafter(name)
        return str(find_file(spec.path)) if spec.is_gguf else f"{spec.path} converted to float32"

    def close(self) -> None:
        """End the child processes, and remove their temporary files."""
        for child in self.children:
            child.close()
        self.scratch.cleanup()

    @cached_property
    def unpacked(self) -> Any:
        """The target as Transformers loads it, since ours has packed weights on a CPU."""
        from ...models.load import load_model

        return load_model(self.target, **self._load)

    @property
    def _load(self) -> dict[str, Any]:
        """The options with which Transformers loads a model; how we run passes is not part of it."""
        return {name: value for name, value in self.load.items() if name not in ("compile", "exact")}

    def _assistant(self, drafter: str) -> Any:
        from ...models.load import load_model

        path = parse_drafter(drafter).path
        if path not in self.built:
            self.built[path] = load_model(path, **self._load)
        return self.built[path]


# -- options ---------------------------------------------------------------------------------------------


def read_options(
    name: str, defaults: Options, given: Mapping[str, str], others: Sequence[str]
) -> dict[str, Any]:
    """Return a mode's options, those given as the types of the defaults; `others` are read elsewhere.

    Raises:
        UserError: an unknown option, a value of another type, or a number that is not above 0.
    """
    options = {key: value[0] if isinstance(value, tuple) else value for key, value in defaults.items()}
    for key, text in given.items():
        if key not in defaults:
            raise UserError(f"{name} has no option {key!r}: choose from {', '.join([*defaults, *others])}")
        options[key] = _convert(f"{name}: {key}={text}", defaults[key], text, may_be_zero=key == "confidence")
    return options


def read_switch(what: str, text: str) -> bool:
    """Return the value of a switch.

    Raises:
        UserError: neither true nor false.
    """
    if text.lower() not in registry.YES + registry.NO:
        raise UserError(f"{what}: write true or false")
    return text.lower() in registry.YES


def _convert(what: str, default: Any, text: str, *, may_be_zero: bool) -> Any:
    if isinstance(default, bool):
        return read_switch(what, text)
    if isinstance(default, tuple):
        if text not in default:
            raise UserError(f"{what}: choose from {', '.join(default)}")
        return text
    try:
        value = type(default)(text)
    except ValueError:
        raise UserError(f"{what} is not {type(default).__name__}") from None
    if not (0 < value < 1_000_000 or (may_be_zero and value == 0)):
        raise UserError(f"{what}: give a positive number")
    return value
