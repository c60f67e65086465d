"""The catalogue: every named policy is one composition of arms, a learner, a reward and a scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from . import registry, stops
from .errors import UserError
from .feedback import Bandit
from .learners.fixed import Fixed
from .learners.learner import Learner
from .learners.ucb import UCB1
from .learners.uniform import Uniform
from .rewards import REWARDS
from .roles import Policy, Recorder
from .types import NEVER, Arm, Context, Decision, Feedback, Stop

TAPOUT_RULES = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")


@dataclass(frozen=True, slots=True)
class Method:
    """A policy and the recorder that feeds it: what a name of the catalogue stands for."""

    policy: Policy
    recorder: Recorder


@dataclass(slots=True)
class BanditPolicy:
    """One learner over the arms; with `per_query`, a fresh one for every request."""

    arms: tuple[Arm, ...]
    new_learner: Callable[[int], Learner]
    per_query: bool = False
    reads_hints: bool = False
    shared: Learner | None = None
    learners: dict[int, Learner] = field(default_factory=dict)

    def choose(self, context: Context, rng: Random) -> Decision:
        """Let the learner of this request choose among the arms whose drafters are in use."""
        arms = self.arms
        allowed: Sequence[int] = range(len(arms))
        if context.unavailable:
            allowed = [i for i in allowed if arms[i].drafter not in context.unavailable] or allowed
        arm, propensity = self._learner(context.request).choose(allowed, rng)
        stop = arms[arm].stop
        return Decision(arm, propensity, stop if isinstance(stop, tuple) else (stop,))

    def learn(self, feedback: Feedback) -> None:
        """Hand the outcome to the learner that made the decision."""
        learner = self._learner(feedback.request)
        if not feedback.outcomes:
            learner.abort(feedback.decision.arm)
        for outcome in feedback.outcomes:
            learner.update(outcome.arm, outcome.reward, feedback.decision.propensity)

    def close(self, request: int) -> None:
        """Forget what was learnt for one request only."""
        self.learners.pop(request, None)

    def _learner(self, request: int) -> Learner:
        if not self.per_query:
            if self.shared is None:
                self.shared = self.new_learner(len(self.arms))
            return self.shared
        if request not in self.learners:
            self.learners[request] = self.new_learner(len(self.arms))
        return self.learners[request]


# -- the catalogue ---------------------------------------------------------------------------------


def none(drafters: Sequence[str]) -> Method:
    """Plain decoding: no draft at all."""
    return _method((Arm("none", 0),), Fixed)


def static(drafters: Sequence[str], *, length: int = 5, drafter: str = "", stop: str = "never") -> Method:
    """One drafter, a fixed draft length (`static-K`), optionally one stop rule (Leviathan et al. 2023)."""
    return _method((Arm(_one(drafters, drafter), _positive(length), stop=_stop(stop)),), Fixed)


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
    return _method(chosen, lambda n: UCB1(n, strength=strength), reward=reward, per_query=per_query)


def uniform(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> Method:
    """A uniformly random arm every round: the baseline that learning must beat."""
    return _method(make_arms(drafters, arms=arms, length=length, lengths=lengths, drafter=drafter), Uniform)


def method(text: str, drafters: Sequence[str]) -> Method:
    """The policy called `name?key=value`, over the drafters at hand; `static-5` is `static?length=5`.

    Raises:
        UserError: an unknown name or option.
    """
    spec = registry.parse(text)
    name, _, number = spec.name.rpartition("-")
    if name == "static" and number.isdigit():
        spec = registry.Spec(name, options={"length": number} | dict(spec.options))
    if spec.path:
        raise UserError(f"policy {text!r}: write options as {spec.name}?key=value")
    built: Method = registry.build("policies", spec, drafters)
    return built


# -- what they are made of ----------------------------------------------------------------------------


def make_arms(
    drafters: Sequence[str],
    *,
    arms: str = "drafters",
    length: int = 5,
    lengths: str = "1,2,4,8",
    drafter: str = "",
) -> tuple[Arm, ...]:
    """The product of the named dimensions: `drafters`, `lengths` (0 = no draft) and `stops`, joined by `*`.

    Raises:
        UserError: an unknown dimension, a length that is no whole number, or no drafter to draft.
    """
    wanted = arms.split("*")
    unknown = set(wanted) - {"drafters", "lengths", "stops"}
    if unknown or len(set(wanted)) < len(wanted):
        raise UserError(f"arms={arms}: write drafters, lengths, stops or products such as drafters*lengths")
    who = (
        [d for d in drafters if d != "none"]
        if "drafters" in wanted and not drafter
        else [_one(drafters, drafter)]
    )
    if not who:
        who = [_one(drafters, drafter)]
    try:
        how_far = [int(x) for x in lengths.split(",")] if "lengths" in wanted else [_positive(length)]
    except ValueError:
        raise UserError(f"lengths={lengths}: write whole numbers with commas, such as 1,2,4,8") from None
    if min(how_far) < 0:
        raise UserError(f"lengths={lengths}: a draft cannot have {min(how_far)} tokens")
    rules = [Stop(r, stops.DEFAULTS[r]) for r in TAPOUT_RULES] if "stops" in wanted else [NEVER]
    product = [Arm(d, n, stop=s) for d in who for n in how_far if n > 0 for s in rules]
    return tuple(([Arm("none", 0)] if 0 in how_far else []) + product)


def _method(
    arms: tuple[Arm, ...],
    new_learner: Callable[[int], Learner],
    *,
    reward: str = "block-efficiency",
    per_query: bool = False,
) -> Method:
    if reward not in REWARDS:
        raise UserError(f"reward={reward}: choose from {', '.join(sorted(REWARDS))}")
    longest = max(max(arm.length for arm in arms), 1)
    return Method(BanditPolicy(arms, new_learner, per_query), Bandit(REWARDS[reward](), longest))


def _one(drafters: Sequence[str], drafter: str) -> str:
    if drafter:
        if drafter not in drafters:
            raise UserError(f"drafter={drafter}: choose from {', '.join(drafters) or 'no drafters at all'}")
        return drafter
    real = [d for d in drafters if d != "none"]
    if not real:
        raise UserError("this policy needs a drafter: give one, such as ngram, or use the policy none")
    return real[0]


def _positive(length: int) -> int:
    if length < 1:
        raise UserError(
            f"length={length}: a draft has at least 1 token; use the policy none for plain decoding"
        )
    return length


def _stop(text: str) -> Stop:
    name, _, number = text.partition("(")
    if name not in stops.DEFAULTS:
        raise UserError(
            f"stop={text}: choose from {', '.join(stops.DEFAULTS)}, with a threshold as svip(0.6)"
        )
    try:
        return Stop(name, float(number.rstrip(")")) if number else stops.DEFAULTS[name])
    except ValueError:
        raise UserError(f"stop={text}: the threshold is not a number; write svip(0.6)") from None
