"""How relays are written, whatever their parts are called."""

from __future__ import annotations

import pytest

from draftwise.drafters.relay import RelayDrafter
from draftwise.policies.auto.composite import relays
from draftwise.registry import build, parse
from draftwise.registry.entries import entry
from draftwise.registry.relays import parts_of, takes_over, with_lookup

NAMES = ["zoo:general", "Qwen/Qwen3-0.6B", "lm:a?probe=no&vocabulary=text", "a>b", "50%", "a%3Fb", "no name"]


@pytest.mark.parametrize("lookup", ["ngram", "ngram?longest=3", "my>lookup"])
def test_every_name_can_be_part_of_a_relay(lookup: str) -> None:
    found = with_lookup(NAMES, [lookup, "suffix"], [*NAMES, lookup, "suffix"])
    assert [parts_of(parse(name)) for name in found] == [(name, lookup) for name in NAMES]
    assert relays([*NAMES, *found]) == {len(NAMES) + i: i for i in range(len(NAMES))}
    made = build("drafters", parse(found[2]), parse(found[2]).path)
    assert isinstance(made, RelayDrafter) and made.parts == (NAMES[2], lookup) and made.match == 1


def test_plain_names_stay_readable() -> None:
    assert with_lookup(["zoo:general"], ["ngram"], []) == ["relay:zoo:general>ngram?match=1"]


def test_there_is_no_relay_without_a_lookup_and_none_twice() -> None:
    assert with_lookup(["a", "b"], [], ["a", "b"]) == []
    beside = ["a", "b", "ngram", "relay:a>suffix?match=2", "relay:b>ngram?first=2"]
    assert with_lookup(["a", "b"], ["ngram"], beside) == ["relay:b>ngram?match=1"]
    assert [takes_over(parse(name)) for name in beside] == [False, False, False, True, False]


def test_the_example_of_a_relay_has_its_parts_beside_it() -> None:
    *beside, relay = entry("drafters", "relay").usage.split(",")
    made = build("drafters", parse(relay), parse(relay).path)
    assert isinstance(made, RelayDrafter) and sorted(made.parts) == sorted(beside)
