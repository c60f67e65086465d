"""The result of probing a model, in a form that can be saved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a model may be run so that its text stays exact.

    `together`: several texts in one pass. `guided`: position ids and attention masks are passed in; otherwise
    the model computes its own. `why` names the first way that disagreed.
    """

    together: bool = True
    guided: bool = True
    why: str = ""

    @classmethod
    def of(cls, kept: object) -> Verdict | None:
        """The verdict saved as JSON; None if it is not one."""
        if not isinstance(kept, dict) or kept.keys() != {"together", "guided", "why"}:
            return None
        return cls(bool(kept["together"]), bool(kept["guided"]), str(kept["why"]))
