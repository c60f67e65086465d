"""Whoever plays a model's stop rules over a lookup is told that they do not fit it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from draftwise.build import decide
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.errors import DraftwiseWarning
from draftwise.specs import parse_policy
from draftwise.testing import SimDrafter

TEAM: dict[str, Any] = {
    "ngram": NgramDrafter(),
    "suffix": SuffixDrafter(),
    "model": SimDrafter(lambda history: np.array([0.5, 0.5])),
}


@pytest.mark.parametrize("policy", ["tapout-seq-ucb1", "tapout-token-ts", "svip", "disco", "ucb1?arms=stops"])
def test_a_rule_for_models_over_a_lookup_is_mentioned(policy: str) -> None:
    with pytest.warns(DraftwiseWarning, match=rf"rules of {policy[:4]}.*ngram has only the frequencies"):
        decide(parse_policy(policy), TEAM, None, {})


@pytest.mark.parametrize(
    "policy",
    ["auto", "static-5", "ucbspec", "hedgespec", "tapout-seq-ucb1?drafter=model", "svip?drafter=model"],
)
def test_other_policies_and_drafters_are_not(policy: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DraftwiseWarning)
        decide(parse_policy(policy), TEAM, None, {})
