"""How the policies of the catalogue are composed, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import registry
from ...core.arms import Arm
from ...core.roles import Policy, Recorder
from ...errors import UserError
from ...specs import PolicySpec, parse_policy
from ..adaptive import Adaptive
from ..bandit import BanditPolicy
from ..learners.fixed import Fixed
from ..learners.learner import Learner
from ..recorders.bandit import READS, Bandit, reward

DEFAULT = "auto"
Options = Mapping[str, Any]
IDLE: tuple[registry.Idle, ...] = (
    ("lengths", lambda given: not _has_lengths(given), "add arms=lengths"),
    ("length", lambda given: _has_lengths(given), "give lengths"),
    ("form", lambda given: bool(given.get("threshold")), "leave out form or threshold"),
    ("per_query", lambda given: given.get("refit") is False, "leave it out, or refit=false"),
)


@dataclass(frozen=True, slots=True)
class Method:
    """A policy and the recorder that feeds it."""

    policy: Policy
    recorder: Recorder

    def __repr__(self) -> str:
        policy, recorder = type(self.policy).__name__, type(self.recorder).__name__
        return f"Method({policy} over {len(self.policy.arms)} arms, {recorder})"


def method(policy: str | PolicySpec, drafters: Sequence[str]) -> Method:
    """Return the policy called `name?key=value`, or that of a function, over the drafters at hand.

    Raises:
        UserError: an unknown name or option, or a function that returns no `Method`.
    """
    spec = parse_policy(policy)
    if spec.loaded is not None:
        built = spec.loaded(drafters)
    else:
        registry.refuse_idle("policies", spec, spec.text, IDLE)
        built = registry.build("policies", spec, drafters, *([spec.path] if spec.path else []))
    if not isinstance(built, Method):
        raise UserError(f"policy {spec.text}: it made {built!r}; return a Method(policy, recorder)")
    return built


def _has_lengths(given: Options) -> bool:
    """Return whether arms differ in length."""
    return "lengths" in str(given.get("arms", "")).split("*")


def default(drafters: Iterable[str]) -> str:
    """The default policy: `auto`, or `none` without drafters."""
    return DEFAULT if any(name != "none" for name in drafters) else "none"


def weighs_cascades(policy: str | PolicySpec) -> bool:
    """Return whether this policy weighs drafts that a model begins and a lookup continues."""
    return parse_policy(policy).name == DEFAULT


def fixed(arm: Arm, moving: Adaptive | None = None, *, per_query: bool = False) -> Method:
    """Always the same arm, whose threshold may move; with `per_query` it starts again with every request."""
    rules = (moving,) if moving else ()
    return bandit((arm,), Fixed, reward="block-efficiency", per_query=per_query, moving=rules)


def bandit(
    arms: tuple[Arm, ...],
    new_learner: Callable[[int], Learner],
    *,
    reward: str,
    per_query: bool = False,
    moving: tuple[Adaptive | None, ...] = (),
) -> Method:
    """A learner over arms, told of the arm that ran."""
    return Method(BanditPolicy(arms, new_learner, per_query, moving=moving), recorder(arms, reward))


def worth(reward: str, arms: Sequence[Arm], usual: str) -> str:
    """The given reward, or the default: `usual` where arms differ in their drafter alone, else the rate.

    Accepted tokens do not count the cost of drafts: the longest length or the latest stop rule would always
    win, and plain decoding would earn nothing. BanditSpec (arXiv 2505.15141, section 5) also rewards lengths
    with the measured throughput.
    """
    alike = len({(arm.length, arm.stop) for arm in arms}) == 1
    return reward or (usual if alike else "rate")


def recorder(arms: Sequence[Arm], name: str) -> Bandit:
    """Bandit feedback by the reward of this name."""
    longest = max(arm.length for arm in arms)
    return Bandit(reward(name), longest, READS.get(name, frozenset()))
