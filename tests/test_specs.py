"""What a name means: which target, drafter or policy, with which path and options."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from draftwise import UserError
from draftwise.registry import Spec
from draftwise.specs import (
    LoadOptions,
    model_name,
    parse_drafter,
    parse_drafters,
    parse_policy,
    parse_target,
    takes_over,
)


class Loaded:
    """A model that the caller has loaded."""

    def __init__(self, name_or_path: str = "") -> None:
        self.name_or_path = name_or_path


@pytest.mark.parametrize(
    ("name", "kind", "path", "options"),
    [
        ("ngram", "ngram", "", {}),
        (" ngram?max=3 ", "ngram", "", {"max": "3"}),
        ("zoo:general?window=64", "lm", "zoo:general", {"window": "64"}),
        ("lm:Qwen/Qwen3-0.6B", "lm", "Qwen/Qwen3-0.6B", {}),
        ("lm:ngram", "lm", "ngram", {}),
        ("/models/one.gguf", "gguf", "/models/one.gguf", {}),
        ("one.GGUF?window=64", "gguf", "one.GGUF", {"window": "64"}),  # names around "lm" in the alphabet,
        ("models/one.gguf", "gguf", "models/one.gguf", {}),  # as this one is
        ("gguf:one", "gguf", "one", {}),
        ("lm:one.gguf", "gguf", "one.gguf", {}),
        ("eagle:head.gguf", "eagle", "head.gguf", {}),  # a drafter of that name reads it, whatever it is
        ("retrieval:a/store?min=2", "retrieval", "a/store", {"min": "2"}),
    ],
)
def test_a_drafters_name_is_that_of_a_drafter_or_of_a_model(
    name: str, kind: str, path: str, options: dict[str, str]
) -> None:
    spec = parse_drafter(name)
    assert (spec.name, spec.path, spec.options, spec.text) == (kind, path, options, name.strip())
    assert spec.is_model == (kind in ("lm", "gguf")) and spec.is_gguf == (kind == "gguf")
    assert parse_drafter(spec) is spec and parse_drafters([spec, object()])[0] is spec


def test_a_drafter_is_loaded_as_was_asked_for() -> None:
    load, model = LoadOptions(pack=True, device="cpu"), Loaded("one")
    for given in ("ngram", "one.gguf", model):
        assert parse_drafter(given).load == LoadOptions()
        assert parse_drafter(given, load).load is load
    assert parse_drafter("ngram").load == LoadOptions(), "names are remembered without it"
    assert (parse_drafter(model).loaded, parse_drafter(model).text) == (model, "one")
    assert load.for_transformers() == {"dtype": "auto", "device": "cpu", "trust_remote_code": False}
    assert LoadOptions().probe, "a model is tested unless someone says otherwise"


@pytest.mark.parametrize(
    ("given", "kind", "path", "text"),
    [
        ("zoo:target", "hf", "zoo:target", "zoo:target"),
        ("ngram", "hf", "ngram", "ngram"),  # no drafter
        ("gguf:one.bin?context=64", "gguf", "one.bin", "gguf:one.bin?context=64"),
        ("lm:one.GGUF?context=64", "gguf", "one.GGUF", "lm:one.GGUF?context=64"),
        ("retrieval:x.gguf", "hf", "retrieval:x.gguf", "retrieval:x.gguf"),
        (Loaded("one.gguf"), "hf", "", "one.gguf"),
        (Loaded(), "hf", "", "Loaded"),
    ],
)
def test_a_target_is_a_model_that_one_of_two_libraries_runs(
    given: Any, kind: str, path: str, text: str
) -> None:
    spec = parse_target(given)
    assert (spec.name, spec.path, spec.text) == (kind, path, text)
    assert spec.options == ({"context": "64"} if kind == "gguf" else {})
    assert spec.loaded is (None if isinstance(given, str) else given) and parse_target(spec) is spec
    assert spec.chains_only == ("a GGUF target" if kind == "gguf" else "")
    assert parse_target(given, LoadOptions(exact=True)).chains_only == "exact=True"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ngram,suffix,ngram", "drafter 'ngram' is repeated"),
        (["suffix?max=3", " suffix?max=3"], r"drafter 'suffix\?max=3' is repeated"),
        ([Loaded("one"), Loaded("one")], "drafter 'one' is repeated"),
        ([""], "drafter '' is without a name"),
        ("ngram,,suffix", "has an empty name"),
    ],
)
def test_drafters_are_told_apart_by_their_names(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_drafters(given)


def test_a_number_after_static_is_its_length_and_after_no_other_policy() -> None:
    spec = parse_policy("static-5")
    assert (spec.name, spec.options, spec.text) == ("static", {"length": "5"}, "static-5")
    assert parse_policy("static-5?length=3").options == {"length": "3"}
    assert parse_policy("tapout-seq-ts?length=3").name == "tapout-seq-ts" and parse_policy(spec) is spec
    for unknown in ("ucb1-5", "svip-5", "static-x", "static-"):
        with pytest.raises(UserError, match=f"unknown policy '{unknown}'"):
            parse_policy(unknown)
    assert (parse_policy(model_name).loaded, parse_policy(model_name).text) == (model_name, "model_name")


def test_only_a_cascade_with_a_match_takes_over() -> None:
    """The words of options are made here, so that they are equal to the program's and not the same object."""
    cascade, lookup = "-cascade"[1:], "-ngram"[1:]
    assert takes_over(Spec(cascade, options={"match": "1"}))
    assert not takes_over(Spec(cascade, options={"match": "-0"[1:]})) and not takes_over(Spec(cascade))
    assert not takes_over(Spec(lookup, options={"match": "1"}))


@pytest.mark.parametrize("spec", [parse_drafter("ngram"), parse_target("a"), parse_policy("ucb1")])
def test_a_spec_which_many_share_cannot_be_changed(spec: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        spec.text = "other"
    with pytest.raises(FrozenInstanceError):
        LoadOptions().device = "cpu"  # type: ignore[misc]
