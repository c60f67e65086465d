"""What is known of a target's latest pass. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PassInfo:
    """One forward pass of a model.

    Attributes:
        kind: A word for how it was run: passes of different kinds take different times.
        tokens: Tokens that it read, without those of `reread`.
        width: Tokens of its longest row.
        reread: Tokens of earlier passes that it read again, after a rejection took back the state.
        seconds: Time inside the model.
        is_timed: False if the pass did more than it will do again, such as compiling.
    """

    kind: str = ""
    tokens: int = 0
    width: int = 0
    reread: int = 0
    seconds: float = 0.0
    is_timed: bool = True
