"""All that a drafter, a policy or a target of your own imports: the stable home of the contract's names.

    from draftwise.plugins import Draft, Job, Request

Importing it loads no torch. `draftwise.testing` has the conformance suites.
"""

from .core.arms import NEVER, Arm, Context, Decision, HandOver, Stop
from .core.drafts import NOTHING, Draft, Job, Signals, Verdict
from .core.outcomes import Feedback, Grade, Outcome, RoundCost, Window
from .core.passes import PassInfo, TargetInfo
from .core.request import Request
from .core.roles import (
    Asynchronous,
    Continuer,
    Drafter,
    GradeJob,
    Grader,
    Graders,
    Guesser,
    Informed,
    LateRecorder,
    Limited,
    Matcher,
    Pieces,
    Planner,
    Policy,
    Preparer,
    Ranked,
    Reader,
    Recorder,
    Rester,
    RoundRecord,
    Scores,
    Target,
    TokenMask,
    TreeReader,
    Valuer,
    Values,
    Waiter,
)
from .core.sampling import Sampling
from .core.stops import factor, needs, stop
from .drafters.lookup.picked import chain
from .errors import UserError
from .policies.arms import make_arms
from .policies.catalogue import Method
from .policies.recorders.bandit import Bandit, reward
from .policies.recorders.full_information import Grading
from .state.learned import LEARNED, adds, averages, learned, mean_by

__all__ = [
    "LEARNED",
    "NEVER",
    "NOTHING",
    "Arm",
    "Asynchronous",
    "Bandit",
    "Context",
    "Continuer",
    "Decision",
    "Draft",
    "Drafter",
    "Feedback",
    "Grade",
    "GradeJob",
    "Grader",
    "Graders",
    "Grading",
    "Guesser",
    "HandOver",
    "Informed",
    "Job",
    "LateRecorder",
    "Limited",
    "Matcher",
    "Method",
    "Outcome",
    "PassInfo",
    "Pieces",
    "Planner",
    "Policy",
    "Preparer",
    "Ranked",
    "Reader",
    "Recorder",
    "Request",
    "Rester",
    "RoundCost",
    "RoundRecord",
    "Sampling",
    "Scores",
    "Signals",
    "Stop",
    "Target",
    "TargetInfo",
    "TokenMask",
    "TreeReader",
    "UserError",
    "Valuer",
    "Values",
    "Verdict",
    "Waiter",
    "Window",
    "adds",
    "averages",
    "chain",
    "factor",
    "learned",
    "make_arms",
    "mean_by",
    "needs",
    "reward",
    "stop",
]
