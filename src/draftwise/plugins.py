"""All that a drafter, a policy or a target of your own imports: the stable home of the contract's names.

    from draftwise.plugins import Draft, Job, Request

Importing it loads no torch. `draftwise.testing` has the conformance suites.
"""

from .core.arms import NEVER, Arm, Context, Decision, Gate, Stop
from .core.drafts import NOTHING, Draft, Job, Signals, Verdict
from .core.outcomes import Feedback, Grade, Outcome, Spent, Window
from .core.request import Request
from .core.roles import (
    Continuer,
    Drafter,
    GradeJob,
    Grader,
    Graders,
    Guesser,
    Limited,
    Masker,
    Matcher,
    Pieces,
    Planner,
    Policy,
    Preparer,
    Ranked,
    Reader,
    Recorder,
    Rester,
    Scores,
    Seen,
    Target,
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
from .policies.recorders.bandit import Bandit
from .policies.recorders.full_information import Grading
from .policies.recorders.rewards import reward
from .state.learned import LEARNED, adds, averages, learned, mean_by

__all__ = [
    "LEARNED",
    "NEVER",
    "NOTHING",
    "Arm",
    "Bandit",
    "Context",
    "Continuer",
    "Decision",
    "Draft",
    "Drafter",
    "Feedback",
    "Gate",
    "Grade",
    "GradeJob",
    "Grader",
    "Graders",
    "Grading",
    "Guesser",
    "Job",
    "Limited",
    "Masker",
    "Matcher",
    "Method",
    "Outcome",
    "Pieces",
    "Planner",
    "Policy",
    "Preparer",
    "Ranked",
    "Reader",
    "Recorder",
    "Request",
    "Rester",
    "Sampling",
    "Scores",
    "Seen",
    "Signals",
    "Spent",
    "Stop",
    "Target",
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
