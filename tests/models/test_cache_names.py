"""The name of the cache is found in signatures, of models as of their outputs, and no release warns of it."""

from __future__ import annotations

import functools
import inspect
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutput, CausalLMOutputWithPast

from draftwise.models.cache_names import CACHE, NAMES, cache_in, name_for
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.recurrent import carriers, held_by
from draftwise.models.runner.states import StateRunner
from tests.architectures.cases import build, cases
from tests.tiny import model

TEXT = [5, 9, 17, 4, 8, 11]


def mamba() -> Any:
    return build(next(case for case in cases() if case.name == "mamba"), lively=False)


def renamed(made: Any, name: str) -> Any:
    """The model with its cache under another name, as in a class that came with files of another release."""
    kind, own = type(made), name_for(made)

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        assert name == own or own not in named
        return kind.forward(self, *args, **{own if key == name else key: x for key, x in named.items()})

    parameters = inspect.signature(kind.forward).parameters.values()
    others = [p.replace(name=name) if p.name == own else p for p in parameters]
    setattr(forward, "__signature__", inspect.Signature(others))  # noqa: B010  # functions declare none
    made.__class__ = type("Renamed", (kind,), {"forward": forward})
    return made


def test_it_is_the_librarys_own() -> None:
    assert CACHE in NAMES
    assert CACHE in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    made = model("llama")
    assert name_for(made) == name_for(made.forward) == name_for(made.model.layers[0]) == CACHE
    assert name_for(made.prepare_inputs_for_generation) == CACHE


def test_nothing_is_deprecated_about_it(caplog: pytest.LogCaptureFixture) -> None:
    made, cache = model("llama"), DynamicCache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = made(torch.tensor([TEXT]), use_cache=True, **{name_for(made): cache})
        assert cache_in(out) is cache
        assert cache_in(made(torch.tensor([TEXT]), use_cache=False)) is None
    assert not caplog.records


def one(input_ids: Any, cache: Any = None) -> None: ...
def two(input_ids: Any, past_key_values: Any = None, **more: Any) -> None: ...
def three(input_ids: Any, *, cache_params: Any = None) -> None: ...
def several(cache_params: Any, past_key_values: Any, cache: Any) -> None: ...
def none(input_ids: Any, **more: Any) -> None: ...
def all_passed_on(*args: Any, **named: Any) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (one, "cache"),
        (two, "past_key_values"),
        (three, "cache_params"),
        (several, CACHE),
        (none, "no name"),
        (all_passed_on, CACHE),
        (nothing, "no name"),
        (functools.wraps(two)(lambda *args, **named: None), "past_key_values"),
        (functools.partial(two, more=1), "past_key_values"),
    ],
)
def test_forwards_of_each_kind(forward: Any, name: str) -> None:
    assert name_for(forward, "no name") == name
    assert name_for(SimpleNamespace(forward=forward), "no name") == name
    assert name_for(forward) == (CACHE if name == "no name" else name)


@pytest.mark.parametrize("name", NAMES)
def test_wrappers_are_as_what_they_wrap(name: str) -> None:
    made = renamed(model("llama"), name)
    compiled: Any = torch.compile(made)
    adapted = SimpleNamespace(forward=none, get_base_model=lambda: made)
    both = SimpleNamespace(forward=none, get_base_model=lambda: compiled)
    assert {name_for(wrapper) for wrapper in (compiled, adapted, both)} == {name}


def test_a_cache_is_found_under_any_name() -> None:
    cache = DynamicCache()
    for name in NAMES:
        assert cache_in({"attention_mask": None, name: cache}) is cache
    given: Any = {CACHE: cache}
    assert cache_in(CausalLMOutputWithPast(**given)) is cache
    others: Any = dict.fromkeys(NAMES)
    assert cache_in(others | {CACHE: cache}) is cache, "the library's own comes first"
    assert cache_in({}) is cache_in(CausalLMOutput()) is cache_in({"use_cache": True}) is None


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_models_are_read_under_any_name(name: str) -> None:
    truth = model("llama")(torch.tensor([TEXT])).logits[0, -1]
    rows = ModelRunner(renamed(model("llama"), name))
    rows.open(0)
    for start, end in ((0, 3), (3, 4), (4, 6)):
        said = rows.forward(PassInput(0, [TEXT[start:end]], 1)).logits
    torch.testing.assert_close(said[0, -1], truth)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_states_are_carried_under_any_name(name: str, carried: bool) -> None:
    with torch.inference_mode(False):
        made, own = renamed(mamba(), name), mamba()
    assert carriers(made) == ["", name]
    rows = StateRunner(made, carried=name if carried else "")
    rows.open(0)
    cache = None
    for tokens in (TEXT[:4], TEXT[4:5], TEXT[5:]):  # its class ignores its states in longer passes
        out = own(torch.tensor([tokens]), use_cache=True, **{name_for(own): cache})
        cache = cache_in(out)
        said = rows.forward(PassInput(0, [tokens], 1)).logits
        torch.testing.assert_close(said[0, -1], out.logits[0, -1])


def test_a_cache_of_states_alone_does_not_tell_its_length() -> None:
    assert held_by(None) == held_by(DynamicCache()) == 0
    for made, known in ((model("llama"), len(TEXT)), (mamba(), None)):
        cache = DynamicCache(config=made.config)
        assert held_by(cache) == 0
        with torch.no_grad():
            made(torch.tensor([TEXT]), use_cache=True, **{name_for(made): cache})
        assert held_by(cache) == known
