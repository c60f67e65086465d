"""Peers by name, `ENGINE:MODE?options`: built if they are installed, otherwise absent with a reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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

EAGER: Options = {"packed": False}
ASSISTED: Options = {"drafter": "", **EAGER}
COMPILED: Options = {"slots": 128, "freeze": False}
MEMORY = 0.9  # of a GPU's, for all engines of a run together
CPU_MEMORY = 0.3  # of all memory, which must be free when vLLM starts on a CPU
LLAMACPP: Options = {
    "context": 4096,
    "gpu_layers": 0,
    "flash": ("auto", "on", "off"),
    "loop": ("fast", "library"),
    "cache": ("f16", "f32"),
    "file": "",
}
ENGINES: Mapping[str, Mapping[str, Options]] = {
    "transformers": {
        "plain": EAGER,
        "assisted": ASSISTED,  # with the defaults of the installed version
        "constant": {"length": 5, **ASSISTED},
        "heuristic": {"length": 20, **ASSISTED},
        "threshold": {"threshold": 0.4, "length": 20, **ASSISTED},
        "lookup": {"length": 10, "ngram": 2, **EAGER},
        "compiled": COMPILED,
        "compiled-lookup": {"length": 10, "ngram": 2, **COMPILED},
        "compiled-assisted": {"drafter": "", **COMPILED},
    },
    "llamacpp": {
        "plain": LLAMACPP,
        "lookup": {**LLAMACPP, "length": 10, "ngram": 2},  # llama-cpp-python's own defaults
        "draft": {**LLAMACPP, "length": 3, "confidence": 0.0, "drafter": ""},  # those of llama.cpp's programs
    },
    "vllm": {
        "plain": {},
        "ngram": {"length": 5, "min": 1, "max": 4},  # with the n-gram lengths of ours
        "suffix": {"length": 16},  # needs arctic-inference
        "draft": {"length": 3, "drafter": ""},
    },
}
MODULES = {"llamacpp": ("llama_cpp", "llama-cpp-python"), "vllm": ("vllm", "vllm")}  # and packages


class Unavailable(Exception):
    """A peer cannot be built here; the message is the reason."""


def names(text: str) -> list[str]:
    """Return the peers named in an option; an engine alone means all its modes, `all` all peers."""
    peers: list[str] = []
    for name in split_names(text, "--peers"):
        for engine in ENGINES if name == "all" else [name]:
            modes = [f"{engine}:{mode}" for mode in ENGINES.get(engine, ())]
            peers += [n for n in modes or [_check_name(engine)] if n not in peers]
    return peers


def _check_name(name: str) -> str:
    spec = registry.parse(name)
    if spec.path not in ENGINES.get(spec.name, ()):
        names = [f"{engine}:{mode}" for engine, modes in ENGINES.items() for mode in modes]
        modes = ENGINES.get(spec.name)
        near = registry.meant(spec.path or "", modes) if modes else registry.meant(spec.name, ENGINES)
        choose = f"{near}choose from {', '.join(names)}, or an engine for all its modes"
        raise UserError(f"no peer {name!r}: {choose}")
    read_options(name, ENGINES[spec.name][spec.path], spec.options)
    return name


@dataclass
class Peers:
    """Builds the peers of a run, whose longest text has `longest` tokens; each model is loaded once.

    On a GPU our own models and `engines` of vLLM's share the memory.
    """

    models: Models
    target: str
    drafters: Sequence[str]
    load: Mapping[str, Any]
    longest: int = 0
    engines: int = 1
    built: dict[str, Any] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    scratch: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def build(self, name: str) -> Contender:
        """Build the contender for a name from `names`.

        Raises:
            UserError: an unknown option, or an invalid one.
            Unavailable: it cannot run here.
        """
        spec = registry.parse(name)
        if spec.name != "llamacpp" and parse_target(self.target).is_gguf:
            raise Unavailable(f"{spec.name} is not given GGUF files: compare with llamacpp")
        module, package = MODULES.get(spec.name, ("", ""))
        if module and find_spec(module) is None:
            raise Unavailable(f"{package} is not installed")
        make = {"transformers": self._transformers, "llamacpp": self._llamacpp, "vllm": self._vllm}[spec.name]
        return make(name, spec.path, read_options(name, ENGINES[spec.name][spec.path], spec.options))

    def _transformers(self, name: str, kind: str, options: dict[str, Any]) -> Contender:
        from .transformers import Transformers

        model = self.models.model if options.pop("packed", False) else self.unpacked
        drafter, assistant = options.pop("drafter", None), None
        if drafter is not None:
            why = "no assistant: name a model among the drafters"
            assistant = self._assistant(self._draft_model(drafter, ("lm",), why))
        if not kind.startswith("compiled"):
            return Transformers(name, kind, options, model, assistant, eos=self.models.eos)
        from .compiled import Compiled, check_compiler

        try:
            check_compiler(model.device.type)
        except UserError as error:
            raise Unavailable(str(error)) from None
        return Compiled(name, kind, options, model, assistant, eos=self.models.eos)

    def _llamacpp(self, name: str, kind: str, options: dict[str, Any]) -> Contender:
        """Build llama.cpp with converted weights in float32, or the user's own file; with our threads."""
        file, drafter = options.pop("file"), options.pop("drafter", None)
        shown: dict[str, Any] = {"flash": None}
        options["context"] = self._context(options["context"])
        if kind == "lookup":
            options["lookup"] = options.pop("length")
        if drafter is not None:
            why = "no draft model: name one among the drafters, or a GGUF file with drafter"
            drafter = self._draft_model(drafter, ("lm", "gguf"), why)
        try:
            options["file"] = file or self.gguf(self.target)
            shown["file"] = file or self._weights(self.target)
            if drafter is not None:
                options["draft"], shown["draft"] = self.gguf(drafter), self._weights(drafter)
        except UserError as error:
            raise Unavailable(str(error)) from None
        return self._child(name, options, drafts=kind != "plain", shown=shown)

    def _vllm(self, name: str, kind: str, options: dict[str, Any]) -> Contender:
        """Build vLLM's own ways of drafting, in float32 on a CPU like ours; one prompt at a time."""
        speculative: dict[str, Any] | None = None
        if kind != "plain":
            method, drafter = "draft_model" if kind == "draft" else kind, options.pop("drafter", None)
            speculative = {"method": method, "num_speculative_tokens": options.pop("length")}
            speculative |= {f"prompt_lookup_{key}": value for key, value in options.items()}
            if drafter is not None:
                why = "no draft model: name one among the drafters"
                speculative["model"] = resolve(parse_drafter(self._draft_model(drafter, ("lm",), why)).path)
        dtype, has_gpu = self.load.get("dtype", "auto"), bool(describe()["gpu"])
        hello = {
            "model": resolve(self.target),
            "context": self._context(LLAMACPP["context"]),
            "dtype": "float32" if dtype == "auto" and not has_gpu else dtype,
            "memory": MEMORY / (1 + self.engines) if has_gpu else CPU_MEMORY,
            "speculative": speculative,
        }
        return self._child(name, hello, drafts=speculative is not None)

    def _context(self, usual: int) -> int:
        """Return how many tokens a text may have: the usual number, or all that the run needs."""
        return min(max(usual, self.longest), window_of(self.models.target))

    def _child(self, name: str, hello: dict[str, Any], **options: Any) -> Contender:
        """Start a peer in a process of its own, with as many threads as ours."""
        from .child import Child, ChildError

        hello["threads"] = describe()["threads"] or cores()
        command = [sys.executable, "-m", f"draftwise.measure.bench.{name.partition(':')[0]}"]
        try:
            child = Child(name, command, hello, eos=self.models.eos, **options)
        except ChildError as error:
            raise Unavailable(str(error)) from None
        self.children.append(child)
        return child

    def _draft_model(self, given: str, kinds: Sequence[str], why: str) -> str:
        """Return the given model, or else the first of these kinds among the drafters.

        Raises:
            UserError: the given drafter is no model of these kinds.
            Unavailable: there is none; says `why`.
        """
        models = [name for name in ([given] if given else self.drafters) if parse_drafter(name).name in kinds]
        if not models and given:
            raise UserError(f"drafter={given}: no draft model of a peer; name a model or leave it out")
        if not models:
            raise Unavailable(why)
        return models[0]

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


def read_options(name: str, defaults: Options, given: Mapping[str, str]) -> dict[str, Any]:
    """Return a mode's options, those given as the types of the defaults."""
    options = {key: value[0] if isinstance(value, tuple) else value for key, value in defaults.items()}
    for key, text in given.items():
        if key not in defaults:
            raise UserError(f"{name} has no option {key!r}: choose from {', '.join(defaults) or 'none'}")
        options[key] = _convert(f"{name}: {key}={text}", defaults[key], text)
    return options


def _convert(what: str, default: Any, text: str) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in registry.YES + registry.NO:
            raise UserError(f"{what}: write true or false")
        return text.lower() in registry.YES
    if isinstance(default, tuple):
        if text not in default:
            raise UserError(f"{what}: choose from {', '.join(default)}")
        return text
    try:
        value = type(default)(text)
    except ValueError:
        raise UserError(f"{what} is not {type(default).__name__}") from None
    if not (0 < value < 1_000_000 or value == default):
        raise UserError(f"{what}: give a positive number")
    return value
