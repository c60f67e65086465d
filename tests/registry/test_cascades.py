"""How cascades are written, whatever their parts are called."""

from __future__ import annotations

import pytest

from draftwise.drafters.cascade import CascadeDrafter
from draftwise.policies.auto.drafts import cascades
from draftwise.registry import build, entry
from draftwise.specs import cascade_parts, name_cascades, parse_drafter, takes_over

NAMES = ["zoo:general", "Qwen/Qwen3-0.6B", "lm:a?probe=no&vocabulary=text", "a>b", "50%", "a%3Fb", "no name"]


@pytest.mark.parametrize("lookup", ["ngram", "ngram?longest=3", "my>lookup"])
def test_every_name_can_be_part_of_a_cascade(lookup: str) -> None:
    found = name_cascades(NAMES, [lookup, "suffix"], [*NAMES, lookup, "suffix"])
    assert [cascade_parts(parse_drafter(name).path) for name in found] == [(name, lookup) for name in NAMES]
    assert cascades([*NAMES, *found]) == {len(NAMES) + i: i for i in range(len(NAMES))}
    made = build("drafters", parse_drafter(found[2]), parse_drafter(found[2]).path)
    assert isinstance(made, CascadeDrafter) and made.parts == (NAMES[2], lookup) and made.match == 1


def test_plain_names_stay_readable() -> None:
    assert name_cascades(["zoo:general"], ["ngram"], []) == ["cascade:zoo:general>ngram?match=1"]


def test_there_is_no_cascade_without_a_lookup_and_none_twice() -> None:
    assert name_cascades(["a", "b"], [], ["a", "b"]) == []
    beside = ["a", "b", "ngram", "cascade:a>suffix?match=2", "cascade:b>ngram?first=2"]
    assert name_cascades(["a", "b"], ["ngram"], beside) == ["cascade:b>ngram?match=1"]
    assert [takes_over(parse_drafter(name)) for name in beside] == [False, False, False, True, False]


def test_the_example_of_a_cascade_has_its_parts_beside_it() -> None:
    *beside, cascade = entry("drafters", "cascade").usage.split(",")
    made = build("drafters", parse_drafter(cascade), parse_drafter(cascade).path)
    assert isinstance(made, CascadeDrafter) and sorted(made.parts) == sorted(beside)
