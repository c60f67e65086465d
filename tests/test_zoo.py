"""The bundled heads, classifiers and router: used as the docs say, and the text is the target's own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from draftwise import Decoder
from draftwise.data import spec_bench
from draftwise.errors import UserError
from draftwise.models.load import load_model, load_tokenizer, resolve
from draftwise.models.zoo import list_parts, list_zoo, zoo_folder
from tests.effort import some

SPECIALISTS = [model.name for model in list_zoo()[1:]]
USES = {
    "eagle": (["eagle:zoo:eagle"], "static-4"),
    "eagle tree": (["eagle:zoo:eagle?width=6", "eagle:zoo:eagle?width=6&gain=0.5"], "random"),
    "medusa": (["medusa:zoo:medusa", "medusa:zoo:medusa?width=6&tree=fixed"], "random"),
    "disco": (["zoo:general"], "disco"),
    "specdecpp": (["zoo:general"], "specdecpp"),
    "router": (SPECIALISTS, "router:zoo:router"),
    "auto": (["eagle:zoo:eagle", "eagle:zoo:eagle?width=8", "medusa:zoo:medusa", "zoo:general"], "auto"),
}
PROMPTS = [prompt.text for prompt in spec_bench()[::97]]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What the target writes by itself."""
    decoder = Decoder.from_pretrained("zoo:target", policy="none")
    return [out.token_ids for out in decoder.generate_many(PROMPTS, max_new_tokens=32)]


@pytest.mark.parametrize("use", some(list(USES), 4))
def test_the_text_is_the_targets_own(plain: list[list[int]], use: str) -> None:
    drafters, policy = USES[use]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=policy)
    found = [decoder.generate(text, max_new_tokens=32) for text in PROMPTS]
    assert [out.token_ids for out in found] == plain
    accepted = sum(out.stats.accepted for out in found)
    assert 0 < accepted < sum(out.stats.drafted for out in found), "both right and wrong"
    assert not any(out.stats.faults for out in found)


def sampled(drafters: Sequence[str], policy: str) -> list[list[int]]:
    decoder = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=policy, seed=3)
    return [out.token_ids for out in decoder.generate_many(PROMPTS, max_new_tokens=24, temperature=0.8)]


def test_a_seed_decides_a_sampled_text() -> None:
    drafters = USES["eagle tree"][0] + USES["medusa"][0]
    assert sampled(drafters, "random") == sampled(drafters, "random")


def test_a_classifier_of_another_drafter_says_so() -> None:
    with pytest.warns(UserWarning, match="trained for another drafter than zoo:sql"):
        Decoder.from_pretrained("zoo:target", drafters=["zoo:sql"], policy="disco")


@pytest.mark.parametrize("name", [part.name for part in list_parts()])
def test_what_is_no_language_model_says_what_it_is(name: str) -> None:
    for load in (load_model, load_tokenizer):
        with pytest.raises(UserError, match=rf"{name} is not a language model: .*{name[4:]}"):
            load(name)


def test_parts_are_what_the_folders_hold() -> None:
    for part in list_parts():
        assert resolve(part.name) == part.path
        assert f"{part.parameters:,} parameters" in (Path(part.path) / "README.md").read_text()
    folder = zoo_folder()
    assert folder is not None
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert size < 131e6
