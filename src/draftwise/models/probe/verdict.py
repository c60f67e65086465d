"""What is found out about a model, and kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a model may be read so that its text stays its own.

    `together`: several texts in one pass. `guided`: it takes places and masks; else it makes its own. `why`
    names what disagreed first.
    """

    together: bool = True
    guided: bool = True
    why: str = ""

    @classmethod
    def of(cls, kept: object) -> Verdict | None:
        """The verdict that was kept as JSON, if it is one."""
        if not isinstance(kept, dict) or kept.keys() != {"together", "guided", "why"}:
            return None
        return cls(bool(kept["together"]), bool(kept["guided"]), str(kept["why"]))
