"""The roles of a round, as protocols: any object with these methods can take part. Standard library only.

In the examples, `target` counts upwards in a vocabulary of eight tokens and is sure of it (0.93), `request`
is greedy and holds the text 0 1 2, and `drafter` and `policy` are plain implementations.
"""

from ..constraint import TokenMask
from .drafter import Continuer, Drafter, GradeJob, Grader, Guesser, Matcher, Preparer, Waiter
from .policy import Planner, Policy, Reader, Rester, Valuer, Values
from .recorder import Graders, LateRecorder, Recorder, RoundRecord
from .target import Asynchronous, Informed, Limited, Pieces, Ranked, Scores, Target, TreeReader, window_of

__all__ = [
    "Asynchronous",
    "Continuer",
    "Drafter",
    "GradeJob",
    "Grader",
    "Graders",
    "Guesser",
    "Informed",
    "LateRecorder",
    "Limited",
    "Matcher",
    "Pieces",
    "Planner",
    "Policy",
    "Preparer",
    "Ranked",
    "Reader",
    "Recorder",
    "Rester",
    "RoundRecord",
    "Scores",
    "Target",
    "TokenMask",
    "TreeReader",
    "Valuer",
    "Values",
    "Waiter",
    "window_of",
]
