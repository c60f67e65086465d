"""The modes of peers by name, with the defaults of their options; and reading options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import registry
from ...errors import UserError

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
