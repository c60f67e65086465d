"""What a target tells of itself and of its latest pass. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PassInfo:
    """One forward pass of a model.

    Attributes:
        kind: A word for how it was run: passes of different kinds take different times.
        reread: Tokens of earlier passes that it read again, after a rejection took back the state.
        is_timed: False if the pass did more than it will do again, such as compiling.
    """

    kind: str = ""
    reread: int = 0
    is_timed: bool = True


@dataclass(slots=True)
class TargetInfo:
    """What a target tells of itself; it may change from round to round.

    Attributes:
        latest: The pass of its latest `verify`.
        is_padded: A pass takes as long as if all its rows were as long as the longest.
        reused: Tokens of open texts that were taken over from other texts, by request id.
    """

    latest: PassInfo = field(default_factory=PassInfo)
    is_padded: bool = False
    reused: dict[int, int] = field(default_factory=dict)
