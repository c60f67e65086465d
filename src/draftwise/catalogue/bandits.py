"""Bandits: learners that hear only of the arm that ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..adaptive import AdaEDL, Adaptive
from ..arms import TOGETHER, make_arms, one, positive, tapout_rules
from ..learners.commit import ExploreThenCommit
from ..learners.ducb import DiscountedUCB
from ..learners.exp3 import EXP3
from ..learners.exp3spec import EXP3Spec
from ..learners.gaussian import GaussianThompson
from ..learners.halving import SequentialHalving
from ..learners.learner import Learner
from ..learners.linucb import LinUCB
from ..learners.swucb import SlidingWindowUCB
from ..learners.ucb import UCB1
from ..learners.ucbspec import UCBSpec
from ..learners.ucbtuned import UCBTuned
from ..learners.uniform import Uniform
from ..policies.bank import Bank, BetaBank, Separate
from ..policies.contextual import ContextPolicy
from ..policies.tokens import TokenPolicy
from ..types import Arm
from .compose import Method, bandit, recorder


def ucb1(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    strength: float = 1.0,
    reward: str = "block-efficiency",
    per_query: bool = False,
) -> Method:
    """UCB1 over drafters, lengths, stop rules or products of them (Auer, Cesa-Bianchi and Fischer 2002)."""
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, lambda n: UCB1(n, strength=strength), reward=reward, per_query=per_query)


def uniform(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> Method:
    """A uniformly random arm every round: the baseline that learning must beat."""
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, Uniform, reward="block-efficiency", per_query=False)


# -- TapOut (arXiv 2511.02017): stop rules as arms, kept from query to query -----------------------


def tapout_seq_ucb1(
    drafters: Sequence[str], *, reward: str = "blended", length: int = 128, drafter: str = ""
) -> Method:
    """TapOut, sequence level: UCB1 over five stop rules, one a round (arXiv 2511.02017)."""
    return _tapout_seq(drafters, UCB1, reward, length, drafter)


def tapout_seq_ucbtuned(
    drafters: Sequence[str], *, reward: str = "blended", length: int = 128, drafter: str = ""
) -> Method:
    """TapOut, sequence level, with UCB-Tuned: the variant that its authors found worse (arXiv 2511.02017)."""
    return _tapout_seq(drafters, UCBTuned, reward, length, drafter)


def tapout_seq_ts(
    drafters: Sequence[str], *, reward: str = "blended", length: int = 128, drafter: str = ""
) -> Method:
    """TapOut, sequence level, with Gaussian Thompson sampling (arXiv 2511.02017)."""
    return _tapout_seq(drafters, GaussianThompson, reward, length, drafter)


def tapout_token_ucb1(drafters: Sequence[str], *, length: int = 128, drafter: str = "") -> Method:
    """TapOut, token level: UCB1 chooses a stop rule for every draft position (arXiv 2511.02017)."""
    return _tapout_token(drafters, lambda arms, places: Separate(arms, places, UCB1), length, drafter)


def tapout_token_ts(drafters: Sequence[str], *, length: int = 128, drafter: str = "") -> Method:
    """TapOut, token level: Beta-Bernoulli Thompson sampling for every draft position (arXiv 2511.02017)."""
    return _tapout_token(drafters, BetaBank, length, drafter)


def _tapout_seq(
    drafters: Sequence[str], learner: Callable[[int], Learner], reward: str, length: int, drafter: str
) -> Method:
    who = one(drafters, drafter)
    arms = tuple(Arm(who, positive(length), stop=rule) for rule in tapout_rules())
    return bandit(arms, learner, reward=reward, per_query=False, moving=_moving())


def _tapout_token(
    drafters: Sequence[str], new_bank: Callable[[int, int], Bank], length: int, drafter: str
) -> Method:
    arms, rules = (Arm(one(drafters, drafter), positive(length)),), tapout_rules()
    policy = TokenPolicy(arms, rules, new_bank(len(rules), length), _moving())
    return Method(policy, recorder(arms, "block-efficiency"))


def _moving() -> tuple[Adaptive | None, ...]:
    """AdaEDL among TapOut's rules keeps its own update, as TapOut prints it."""
    return tuple(AdaEDL(form="tapout") if rule.rule == "adaedl" else None for rule in tapout_rules())


# -- MetaSD (arXiv 2604.05417): drafters as arms, learnt anew for each query ------------------------


def metasd_ucb(
    drafters: Sequence[str],
    *,
    beta: float = 0.01,
    reward: str = "block-divergence",
    length: int = 5,
    arms: str = "drafters",
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> Method:
    """MetaSD: UCB over drafters by block divergence, strength beta 0.01 as published (arXiv 2604.05417).

    Logarithmic regret is proved for beta above 1/2 only; `beta=1` is UCB1.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, lambda n: UCB1(n, strength=beta), reward=reward, per_query=True)


def metasd_exp3(
    drafters: Sequence[str],
    *,
    gamma: float = 0.4,
    reward: str = "block-divergence",
    length: int = 5,
) -> Method:
    """MetaSD with EXP3, gamma 0.4 (arXiv 2604.05417, Algorithm 7)."""
    return _metasd(drafters, lambda n: EXP3(n, gamma=gamma), reward, length)


def metasd_sh(
    drafters: Sequence[str], *, budget: int = 0, reward: str = "block-divergence", length: int = 5
) -> Method:
    """MetaSD with sequential halving: the worse half of the drafters leaves (arXiv 2604.05417, Algorithm 5).

    `budget` 0 is one pull per surviving drafter between eliminations, the paper's "period 1".
    """
    return _metasd(drafters, lambda n: SequentialHalving(n, budget=budget), reward, length)


def metasd_petc(
    drafters: Sequence[str],
    *,
    constant: float = 4.0,
    horizon: int = 256,
    reward: str = "block-divergence",
    length: int = 5,
) -> Method:
    """MetaSD's pure exploration, then commit: for drafters dear to switch (arXiv 2604.05417, Algorithm 4)."""
    return _metasd(
        drafters, lambda n: ExploreThenCommit(n, constant=constant, horizon=horizon), reward, length
    )


def metasd_ducb(
    drafters: Sequence[str],
    *,
    discount: float = 0.98,
    beta: float = 0.01,
    reward: str = "block-divergence",
    length: int = 5,
) -> Method:
    """MetaSD with discounted UCB: old rewards fade (arXiv 2604.05417, Algorithm 6; no discount is given)."""
    return _metasd(drafters, lambda n: DiscountedUCB(n, discount=discount, strength=beta), reward, length)


def metasd_swucb(
    drafters: Sequence[str],
    *,
    window: int = 100,
    beta: float = 0.01,
    reward: str = "block-divergence",
    length: int = 5,
) -> Method:
    """MetaSD with sliding-window UCB: old rewards leave (arXiv 2604.05417, Algorithm 8; window not given)."""
    return _metasd(drafters, lambda n: SlidingWindowUCB(n, window=window, strength=beta), reward, length)


def _metasd(drafters: Sequence[str], learner: Callable[[int], Learner], reward: str, length: int) -> Method:
    return bandit(make_arms(drafters, length=length), learner, reward=reward, per_query=True)


# -- BanditSpec (arXiv 2505.15141): any configuration as arms, learnt anew for each query -----------


def ucbspec(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "0,1,2,3,4",
    drafter: str = "",
    strength: float = 1.0,
    reward: str = "accepted",
) -> Method:
    """BanditSpec's UCBSpec with its own confidence radius (arXiv 2505.15141, section 4).

    The radius explores almost evenly at the length of one request; `strength` scales it down.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, lambda n: UCBSpec(n, strength=strength), reward=reward, per_query=True)


def exp3spec(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "0,1,2,3,4",
    drafter: str = "",
    reward: str = "accepted",
) -> Method:
    """BanditSpec's EXP3Spec: anytime EXP3 on losses, for any text at all (arXiv 2505.15141)."""
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    return bandit(chosen, EXP3Spec, reward=reward, per_query=True)


# -- extensions --------------------------------------------------------------------------------------


def linucb(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
    strength: float = 0.5,
    reward: str = "block-efficiency",
) -> Method:
    """LinUCB on match lengths, position, last accepted and last entropy (Li et al. 2010).

    What TapOut and MetaSD name as future work.
    """
    chosen = make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter)
    hinted = tuple(dict.fromkeys(arm.drafter for arm in chosen if arm.length))
    learner = LinUCB(len(chosen), ContextPolicy.dimensions(len(hinted)), strength=strength)
    return Method(ContextPolicy(chosen, hinted, learner), recorder(chosen, reward))


def draft_all(drafters: Sequence[str], *, length: int = 5) -> Method:
    """MetaSD's DraftAll: every drafter drafts, all drafts are verified as one tree (arXiv 2604.05417)."""
    real = [d for d in drafters if d != "none"] or [one(drafters, "")]
    arm = Arm(TOGETHER, positive(length), width=len(real))
    return bandit((arm,), Uniform, reward="block-efficiency", per_query=False)
