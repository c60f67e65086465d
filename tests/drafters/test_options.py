"""Options of drafters that are out of their range are refused by name, before anything is loaded."""

from __future__ import annotations

import re

import pytest

from draftwise import registry
from draftwise.drafters.names import check_drafters
from draftwise.errors import UserError
from draftwise.specs import parse_drafter


@pytest.mark.parametrize(
    ("drafter", "option"),
    [
        ("suffix", "factor=-1"),
        ("suffix", "offset=inf"),
        ("suffix", "min_prob=1.5"),
        ("suffix", "tries=0"),
        ("suffix", "depth=0"),
        ("suffix", "max_tokens=1"),
        ("suffix", "history=-5"),
        ("retrieval", "candidates=0"),
        ("retrieval", "min_prob=nan"),
        ("cascade", "first=-1"),
        ("cascade", "match=-1"),
        ("lm", "window=-1"),
        ("gguf", "context=-1"),
        ("gguf", "threads=-2"),
        ("eagle", "width=0"),
        ("mtp", "top=0"),
        ("early-exit", "gain=-1"),
        ("medusa", "rescore=-1"),
        ("lookahead", "n=1"),
        ("lookahead", "pool=0"),
    ],
)
def test_options_out_of_their_range_are_refused(drafter: str, option: str) -> None:
    with pytest.raises(UserError, match=f"^{drafter}.{option}: give "):
        registry.build("drafters", registry.parse(f"{drafter}:PATH?{option}"))


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("cascade:a>b?match=1&first=2", "first has no effect here: leave it out"),
        ("cascade:a>b?instead=true&first=1", "first has no effect here: leave it out"),
        ("zoo:general?sinks=8", "sinks has no effect here: add window"),
        ("eagle:PATH?width=4&sample=false", "sample has no effect here: a tree is never sampled"),
        ("medusa:PATH?width=4&tree=fixed&rescore=0.5", "rescore has no effect here: leave it out"),
    ],
)
def test_an_option_that_does_nothing_beside_others_is_refused(drafter: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^drafter {re.escape(f'{drafter}: {said}')}"):
        check_drafters([parse_drafter(drafter)])


@pytest.mark.parametrize(
    "drafter", ["cascade:a>b?first=2", "zoo:general?sinks=8&window=64&width=2&sample=false"]
)
def test_beside_others_it_is_not(drafter: str) -> None:
    check_drafters([parse_drafter(drafter)])
