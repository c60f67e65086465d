"""The names under which models take their cache and return it.

Transformers said `past_key_values`, and `cache_params` in some classes, until 5.24 made all of them `cache`.
A class that comes with a model's files may say any of them in any release, so that names are looked for, not
versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from transformers import GenerationMixin

NAMES = ("cache", "past_key_values", "cache_params")
PASSED_ON = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}  # kinds of parameters without names


def _first(names: Iterable[str], order: Iterable[str] = NAMES) -> str:
    known = set(names)
    return next((name for name in order if name in known), "")


CACHE = _first(inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters) or NAMES[0]
"""The name in the installed Transformers."""

ORDER = (CACHE, *(name for name in NAMES if name != CACHE))


def name_for(by: Any, otherwise: str = CACHE) -> str:
    """The name under which a model, a layer or a function takes a cache; `otherwise` if it names none.

    A wrapped model is asked instead of its wrapper, and what passes all its arguments on takes Transformers'
    own name.
    """
    by = _inside(by)
    named = inspect.signature(getattr(by, "forward", by)).parameters
    kinds = {parameter.kind for parameter in named.values()}
    return CACHE if Parameter.VAR_KEYWORD in kinds <= PASSED_ON else _first(named, ORDER) or otherwise


def _inside(by: Any) -> Any:
    """The model in a wrapper of PEFT or of torch.compile, whose own parameters tell nothing."""
    if hasattr(by, "get_base_model"):
        by = by.get_base_model()
    return getattr(by, "_orig_mod", by)


def cache_in(given: Mapping[str, Any]) -> Any:
    """The cache in a model's output or among its arguments; None if there is none."""
    name = _first(list(given), ORDER)  # an output warns when it is asked for a name that it does not list
    return given[name] if name else None
