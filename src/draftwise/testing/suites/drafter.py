"""The conformance suite of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.roles import Target
from .checks import suite_of
from .drafts import DraftChecks
from .upkeep import UpkeepChecks


class DrafterSuite(DraftChecks, UpkeepChecks):
    """What a drafter must do, as checks that pytest collects; `drafter_suite` makes one."""


def drafter_suite(
    make: Callable[..., Any],
    *,
    target: Callable[[], Target] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    learns: bool = False,
    samples: int | None = None,
) -> type[DrafterSuite]:
    """A test class for a drafter: the text stays exact, drafts keep their contract, nothing leaks.

    `make` makes a drafter; it is given the target if it has a parameter `target`. `target` makes the target:
    by default a numpy one over four tokens that is hard to draft for. `prompts` are lists of token ids.
    `learns` says that drafts depend on more than the text before them. `samples` texts are drawn to see their
    distribution, 2000 by default.

        TestEcho = drafter_suite(Echo)
    """
    options = {"make": make, "target": target, "prompts": prompts, "learns": learns, "samples": samples}
    return suite_of(DrafterSuite, options)
