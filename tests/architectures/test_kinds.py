"""The sweep has a model with every kind of layer that the source of a class speaks of."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.effort import some

from .cases import Case, build, cases, own_text

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.parametrize("part", some(range(16), 16))
def test_every_kind_of_layer_of_a_class_is_in_the_sweep(part: int) -> None:
    """A kind that no default has, such as MiniMax-M3's blocks, would go unseen."""
    missing = [
        (name, kind) for name in TYPES[part::16] for kind in named(name) - tried(name) if works(name, kind)
    ]
    assert not missing, missing


def named(name: str) -> set[str]:
    """The kinds of attention in the source of a class and of its configuration."""
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    source = ""
    for part in (kind, kind.config_class):
        with suppress(TypeError, OSError):  # a class that Transformers cannot import here
            source += Path(inspect.getsourcefile(part) or "").read_text(encoding="utf-8")
    return {kind for kind in ALLOWED_ATTN_LAYER_TYPES if f'"{kind}"' in source}


def tried(name: str) -> set[str]:
    """The kinds of layers in the models of the sweep, by what they are configured with."""
    found: set[str] = set()
    for case in cases():
        if case.type == name:
            try:
                found |= set(kinds(build(case, lively=False)))
            except Exception:
                continue
    return found


def works(name: str, kind: str) -> bool:
    """Whether Transformers itself decodes with a last layer of this kind."""
    try:
        usual = kinds(build(Case(name, name), lively=False))
        fields = {"layer_types": [*usual[:-1], kind], "sliding_window": 9}
        made = build(Case(name, name, fields), lively=False)
        return kind in kinds(made) and len(own_text(made, [3, 4, 5], 2)) == 2
    except Exception:
        return False


def kinds(made: Any) -> list[str]:
    """The kinds of its layers."""
    return list(getattr(made.config.get_text_config(decoder=True), "layer_types", None) or ())
