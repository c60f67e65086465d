"""Turns names into specs, once: a target (`ModelSpec`), drafters (`DrafterSpec`) and a policy (`PolicySpec`).

Nothing is loaded, and no file is looked for. A spec in place of a name is returned as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from . import registry
from .errors import UserError
from .inputs import show
from .registry import Spec

GGUF, GGUF_ENDING = "gguf", ".gguf"
REMEMBERED = 1024  # names whose specs are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How models are loaded and run, as in `Decoder.from_pretrained`."""

    dtype: Any = "auto"
    device: Any = "auto"
    device_map: Any = None  # of the target alone
    trust_remote_code: bool = False
    pack: bool | str = "auto"
    compile: str = "off"
    exact: bool = False  # the target's passes
    probe: bool = True

    def for_transformers(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("dtype", "device", "trust_remote_code")}


@dataclass(frozen=True, slots=True)
class ModelSpec(Spec):
    """A target by its name, or a `loaded` model.

    `name` is the target of the registry that runs it (hf or gguf), `path` a folder, a file, a Hugging Face id
    or zoo:NAME, and `text` the name as it was given.
    """

    text: str = ""
    loaded: Any = None
    load: LoadOptions = field(default_factory=LoadOptions)

    @property
    def is_gguf(self) -> bool:
        return self.name == GGUF

    @property
    def chains_only(self) -> str:
        """What keeps this target from reading trees of drafted tokens; "" if nothing in its options does."""
        return "exact=True" if self.load.exact else "a GGUF target" if self.is_gguf else ""


@dataclass(frozen=True, slots=True)
class DrafterSpec(ModelSpec):
    """A drafter by its name, or a `loaded` model or drafter; `name` is the drafter of the registry."""

    @property
    def is_model(self) -> bool:
        """True for the weights of a language model: `lm` or `gguf`."""
        return self.name in ("lm", GGUF)


@dataclass(frozen=True, slots=True)
class PolicySpec(Spec):
    """A policy of the registry with its options, or a `loaded` function from drafters' names to a `Method`.

    `text` is the name as it was given.
    """

    text: str = ""
    loaded: Callable[[Sequence[str]], Any] | None = None


def parse_target(given: Any, load: LoadOptions | None = None) -> ModelSpec:
    """Return the spec of a target: a model's name or a loaded model."""
    load = load or LoadOptions()
    if isinstance(given, ModelSpec):
        return given
    if not isinstance(given, str):
        return ModelSpec("hf", text=model_name(given), loaded=given, load=load)
    if (file := _parse_gguf(given)) is not None:
        return ModelSpec(GGUF, file.path, file.options, text=given, load=load)
    return ModelSpec("hf", given, text=given, load=load)


def parse_drafters(given: Any, load: LoadOptions | None = None) -> tuple[DrafterSpec, ...]:
    """Return the specs of drafters, each once: names, loaded models or drafters; see `split_names`."""
    specs = tuple(parse_drafter(one, load) for one in split_names(given, "drafters"))
    texts = [spec.text for spec in specs]
    for text in texts:
        if not text or texts.count(text) > 1:
            problem = "repeated" if text else "without a name"
            raise UserError(f"drafter {text!r} is {problem}: give each drafter once")
    return specs


def parse_drafter(given: Any, load: LoadOptions | None = None) -> DrafterSpec:
    """Return the spec of one drafter; a `UserError` says that its options cannot be read."""
    if isinstance(given, DrafterSpec):
        return given
    if isinstance(given, str):
        spec = _parse_drafter(given.strip())
        return spec if load is None else replace(spec, load=load)
    return DrafterSpec("", text=model_name(given), loaded=given, load=load or LoadOptions())


@lru_cache(REMEMBERED)
def _parse_drafter(text: str) -> DrafterSpec:
    if (file := _parse_gguf(text)) is not None:
        return DrafterSpec(GGUF, file.path, file.options, text=text)
    spec = registry.parse(text)
    if spec.name != "lm" and spec.name in registry.names("drafters"):
        return DrafterSpec(spec.name, spec.path, spec.options, text=text)
    path = spec.path if spec.name == "lm" else text.partition("?")[0]
    return DrafterSpec("lm", path, spec.options, text=text)


def _parse_gguf(text: str) -> Spec | None:
    """Return the file and options of `gguf:PATH?options` or a path that ends in .gguf; None for others."""
    spec = registry.parse(text)
    if spec.name == GGUF:
        return spec
    path = spec.path if spec.name == "lm" else text.strip().partition("?")[0]
    if not path.lower().endswith(GGUF_ENDING):
        return None
    return None if spec.name != "lm" and spec.name in registry.names("drafters") else replace(spec, path=path)


def parse_policy(given: Any) -> PolicySpec:
    """Return the spec of a policy, a name or a function; `static-5` is `static?length=5`."""
    if isinstance(given, PolicySpec):
        return given
    if callable(given):
        return PolicySpec("", text=getattr(given, "__name__", type(given).__name__), loaded=given)
    spec = registry.parse(given)
    name, _, number = spec.name.rpartition("-")
    if name == "static" and number.isdigit():
        return PolicySpec(name, options={"length": number} | dict(spec.options), text=given)
    registry.point("policies", spec.name)
    return PolicySpec(spec.name, spec.path, spec.options, text=given)


def split_names(names: Any, what: str) -> list[Any]:
    """Return names or objects as a list; a string has commas between them, and no empty name."""
    if isinstance(names, str):
        parts = [name.strip() for name in names.split(",")] if names.strip() else []
        if not all(parts):
            raise UserError(f"{what} {names!r} has an empty name: give A,B")
        return parts
    if not isinstance(names, Sequence):
        raise UserError(f"{what} {show(names)}: give a list of names, such as ['ngram', 'suffix']")
    return list(names)


def model_name(model: Any) -> str:
    """Return the name of a loaded model, or of its class."""
    return str(getattr(model, "name_or_path", "") or type(model).__name__)


def cascade_parts(path: str) -> tuple[str, ...]:
    """Return the drafters of `cascade:PATH`; `%`, `?` and `>` are written in their names as in a URL."""
    return tuple(unquote(part.strip()) for part in path.split(">"))


def takes_over(spec: Spec) -> bool:
    """Return whether a drafter is a cascade whose second part takes over with a match."""
    return spec.name == "cascade" and spec.options.get("match", "0") != "0"


def name_cascades(models: Iterable[str], lookups: Sequence[str], beside: Iterable[str]) -> list[str]:
    """Return the names of cascades in which each model hands over to the first lookup.

    A model that begins one already, among the drafters `beside` it, gets no other.
    """
    begun = {cascade_parts(spec.path)[0] for spec in map(parse_drafter, beside) if takes_over(spec)}
    return [
        f"cascade:{_quote(model)}>{_quote(lookup)}?match=1"
        for lookup in lookups[:1]
        for model in models
        if model not in begun
    ]


def _quote(name: str) -> str:
    for sign in "%?>":
        name = name.replace(sign, f"%{ord(sign):02X}")
    return name
