"""TapOut (arXiv 2511.02017): five stop rules as arms; what was learned is kept from request to request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...core.arms import Arm
from ..adaptive import AdaEDL, Adaptive
from ..arms import one, positive, tapout_rules
from ..learners.learner import Learner
from ..learners.thompson import GaussianThompson
from ..learners.ucb import UCB1, UCBTuned
from ..tokens import BetaBank, Separate, TokenPolicy
from .compose import Method, bandit, recorder
from .options import Drafter, Longest, PerQuery, Printed, Reward

CAP = 128  # gamma_max of the paper


def tapout_seq_ucb1(
    drafters: Sequence[str],
    *,
    reward: Reward = "blended",
    length: Longest = CAP,
    drafter: Drafter = "",
    per_query: PerQuery = False,
    printed: Printed = False,
) -> Method:
    """UCB1 chooses one of five stop rules for each round.

    The paper prints a t that is one higher than usual; the two are level in simulation.

    Source: TapOut (arXiv 2511.02017), sequence level.
    """
    return _sequence(drafters, partial(UCB1, ahead=int(printed)), reward, length, drafter, per_query)


def tapout_seq_ucbtuned(
    drafters: Sequence[str],
    *,
    reward: Reward = "blended",
    length: Longest = CAP,
    drafter: Drafter = "",
    per_query: PerQuery = False,
    printed: Printed = False,
) -> Method:
    """UCB-Tuned chooses one of five stop rules for each round; slower than UCB1 in the paper.

    Source: TapOut (arXiv 2511.02017), sequence level.
    """
    return _sequence(drafters, partial(UCBTuned, ahead=int(printed)), reward, length, drafter, per_query)


def tapout_seq_ts(
    drafters: Sequence[str],
    *,
    reward: Reward = "blended",
    length: Longest = CAP,
    drafter: Drafter = "",
    per_query: PerQuery = False,
) -> Method:
    """Gaussian Thompson sampling chooses one of five stop rules for each round.

    Source: TapOut (arXiv 2511.02017), sequence level.
    """
    return _sequence(drafters, GaussianThompson, reward, length, drafter, per_query)


def tapout_token_ucb1(
    drafters: Sequence[str], *, length: Longest = CAP, drafter: Drafter = "", printed: Printed = False
) -> Method:
    """UCB1 chooses a stop rule for every draft position.

    Source: TapOut (arXiv 2511.02017), token level.
    """
    learner = partial(UCB1, ahead=int(printed))
    return _token(drafters, lambda arms, places: Separate(arms, places, learner), length, drafter)


def tapout_token_ts(drafters: Sequence[str], *, length: Longest = CAP, drafter: Drafter = "") -> Method:
    """Beta-Bernoulli Thompson sampling chooses a stop rule for every draft position.

    Source: TapOut (arXiv 2511.02017), token level.
    """
    return _token(drafters, BetaBank, length, drafter)


def _sequence(
    drafters: Sequence[str],
    learner: Callable[[int], Learner],
    reward: str,
    length: int,
    drafter: str,
    per_query: bool,
) -> Method:
    who = one(drafters, drafter)
    arms = tuple(Arm(who, positive(length), stop=rule) for rule in tapout_rules())
    return bandit(arms, learner, reward=reward, per_query=per_query, moving=_moving())


def _token(
    drafters: Sequence[str], new_bank: Callable[[int, int], Separate | BetaBank], length: int, drafter: str
) -> Method:
    arms, rules = (Arm(one(drafters, drafter), positive(length)),), tapout_rules()
    policy = TokenPolicy(arms, rules, new_bank(len(rules), length), _moving())
    return Method(policy, recorder(arms, "block-efficiency"))


def _moving() -> tuple[Adaptive | None, ...]:
    """AdaEDL among the rules keeps its own update, as TapOut prints it."""
    return tuple(AdaEDL(form="tapout") if rule.rule == "adaedl" else None for rule in tapout_rules())
