"""Tests for plug-ins: conformance suites, and a numpy target and drafter with known distributions.

    from draftwise.testing import drafter_suite
    TestEcho = drafter_suite(Echo)

Importing it loads neither torch nor pytest.
"""

from .distributions import draw, markov, shape, softmax
from .drafter import SimDrafter
from .exact import exact, exact_of, p_value, sample
from .suites.drafter import DrafterSuite, drafter_suite
from .suites.policy import PolicySuite, policy_suite
from .target import SimTarget

__all__ = [
    "DrafterSuite",
    "PolicySuite",
    "SimDrafter",
    "SimTarget",
    "drafter_suite",
    "draw",
    "exact",
    "exact_of",
    "markov",
    "p_value",
    "policy_suite",
    "sample",
    "shape",
    "softmax",
]
