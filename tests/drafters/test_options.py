"""Options of drafters that are out of their range are refused by name, before anything is loaded."""

from __future__ import annotations

import pytest

from draftwise import registry
from draftwise.errors import UserError


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
