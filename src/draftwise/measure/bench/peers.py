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
from ...models.gguf.names import gguf_spec
from ...models.load import resolve
from ..machine import cores, describe
from .contender import Contender
from .modes import ENGINES, LLAMACPP, VLLM, converted, flag
from .ours import Models, is_model

if TYPE_CHECKING:
    from .child import Child


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not be measured, and the reason."""

    method: str
    reason: str


def names(text: str) -> list[str]:
    """The peers of an option, separated by commas; an engine alone means all its modes, `all` all peers.

    Raises:
        UserError: an unknown engine or mode, or an empty name.
    """
    found: list[str] = []
    for name in registry.listed(text, "--peers"):
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
        if spec.name != "llamacpp" and gguf_spec(self.target):
            return Absent(name, f"{spec.name} is not given GGUF files: compare with llamacpp")
        maker: Callable[[str, registry.Spec], Contender | Absent] = getattr(self, f"_{spec.name}")
        return maker(name, spec)

    def _transformers(self, name: str, spec: registry.Spec) -> Contender | Absent:
        from .transformers import MODES, Transformers

        given = dict(spec.options)
        text = given.pop("packed", "false")
        packed = flag(f"{name}: packed={text}", text)
        drafter = given.pop("drafter", "")
        mode = MODES[spec.path](**converted(name, MODES[spec.path], given, ("drafter", "packed")))
        model = self.models.model if packed else self.unpacked
        assistant = None
        if mode.assistant is not None:
            drafter = drafter or next((d for d in self.drafters if is_model(d) and not gguf_spec(d)), "")
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
        """llama.cpp with converted weights in float32, or the user's own file; as many threads as ours."""
        if find_spec("llama_cpp") is None:
            return Absent(name, "llama-cpp-python is not installed")
        from .child import Child, ChildError

        given, mode = dict(spec.options), LLAMACPP[spec.path]
        drafts = spec.path == "draft"
        others = ("file", "drafter") if drafts else ("file",)
        file, drafter = (given.pop(key, "") if key in others else "" for key in ("file", "drafter"))
        options = mode(**converted(name, mode, given, others))
        drafter = drafter or (next(filter(is_model, self.drafters), "") if drafts else "")
        if drafts and not drafter:
            return Absent(name, "no draft model: name one among the drafters, or a GGUF file with drafter")
        try:
            hello = options | {
                "file": file or self.gguf(self.target),
                "threads": describe()["threads"] or cores(),
                "context": min(options["context"], window_of(self.models.target)),
            }
            if drafts:
                hello["draft"] = self.gguf(drafter)
            shown = {"file": file or self._weights(self.target), "flash": None}
            if drafts:
                shown["draft"] = self._weights(drafter)
            command = [sys.executable, "-m", "draftwise.measure.bench.llamacpp"]
            plain = spec.path == "plain"
            child = Child(name, command, hello, eos=self.models.eos, drafts=not plain, shown=shown)
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
            drafter = drafter or next((d for d in self.drafters if is_model(d) and not gguf_spec(d)), "")
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
            child = Child(name, command, hello, eos=self.models.eos, drafts=speculative is not None)
        except ChildError as error:
            return Absent(name, str(error))
        self.children.append(child)
        return child

    def gguf(self, name: str) -> str:
        """A model as a GGUF file: itself if it is one, else converted once, until `close`."""
        if file := gguf_spec(name):
            return str(Path(file.path).expanduser().absolute())
        from ...models.gguf.export import write_gguf

        key = f"{model_of(name)} as gguf"
        if key not in self.built:
            path = Path(self.scratch.name) / f"{len(self.built)}.gguf"
            write_gguf(self.unpacked if name == self.target else self._assistant(name), path)
            self.built[key] = str(path)
        return str(self.built[key])

    def _weights(self, name: str) -> str:
        """A model's weights in words."""
        file = gguf_spec(name)
        return file.path if file else f"{model_of(name)} converted to float32"

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
        """How Transformers loads a model; compiling in our way is not part of it."""
        return {name: value for name, value in self.load.items() if name != "compile"}

    def _assistant(self, drafter: str) -> Any:
        from ...models.load import load_model

        path = model_of(drafter)
        if path not in self.built:
            self.built[path] = load_model(path, **self._load)
        return self.built[path]


def model_of(drafter: str) -> str:
    """The model of a drafter's name."""
    spec = registry.parse(drafter)
    return spec.path if spec.name == "lm" else drafter.partition("?")[0]
