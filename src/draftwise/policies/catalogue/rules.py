"""One drafter and one rule: nothing is chosen, at most a threshold or a length moves."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.arms import Arm, Stop
from ...errors import UserError
from ..adaptive import AdaEDL, ConfidenceRefit
from ..arms import one, parse_stop, positive
from ..lengths import LengthPolicy
from .compose import Method, fixed, recorder


def none(drafters: Sequence[str]) -> Method:
    """Plain decoding: no draft at all."""
    return fixed(Arm("none", 0))


def static(drafters: Sequence[str], *, length: int = 5, drafter: str = "", stop: str = "never") -> Method:
    """One drafter, a fixed draft length (`static-K`), optionally one stop rule (Leviathan et al. 2023)."""
    return fixed(Arm(one(drafters, drafter), positive(length), stop=parse_stop(stop)))


def max_confidence(
    drafters: Sequence[str], *, threshold: float = 0.8, length: int = 128, drafter: str = ""
) -> Method:
    """Draft while the likeliest token has a probability of 0.8 or more (TapOut, Table 1)."""
    return _rule(drafters, "max-confidence", threshold, length, drafter)


def svip(
    drafters: Sequence[str],
    *,
    form: str = "tapout",
    threshold: float = 0.0,
    length: int = 40,
    drafter: str = "",
) -> Method:
    """Draft while the square root of the entropy stays below a threshold (SVIP, arXiv 2411.18462).

    The threshold is 0.6 as TapOut runs it, 0.3 with `form=paper`, and 0.775 with `form=code`, since SVIP's
    own code tests sqrt(0.15 H) > 0.3. A `threshold` above 0 is taken instead. At most 40 tokens (the paper).
    """
    known = {"tapout": 0.6, "paper": 0.3, "code": 0.3 / 0.15**0.5}
    if form not in known:
        raise UserError(f"svip?form={form}: choose from {', '.join(known)}")
    return _rule(drafters, "svip", threshold or known[form], length, drafter)


def svip_difference(
    drafters: Sequence[str], *, threshold: float = 0.2, length: int = 128, drafter: str = ""
) -> Method:
    """Draft until the square root of the entropy jumps by more than 0.2 (TapOut, Table 1)."""
    return _rule(drafters, "svip-difference", threshold, length, drafter)


def logit_margin(
    drafters: Sequence[str], *, threshold: float = 0.2, length: int = 128, drafter: str = ""
) -> Method:
    """Draft while the two likeliest tokens are at least 0.2 apart (TapOut, Table 1)."""
    return _rule(drafters, "logit-margin", threshold, length, drafter)


def adaedl(
    drafters: Sequence[str],
    *,
    form: str = "paper",
    start: float = 0.6,
    target: float = 0.9,
    length: int = 40,
    drafter: str = "",
) -> Method:
    """Draft while 1 - sqrt(0.2 H) stays above a threshold that follows the acceptance rate (AdaEDL).

    arXiv 2410.18351. `form` is whose update moves the threshold: the AdaEDL paper's, or the one that TapOut
    prints (`tapout`). `start` is the first threshold and `target` the acceptance rate aimed at.
    """
    if form not in ("paper", "tapout"):
        raise UserError(f"adaedl?form={form}: choose from paper, tapout")
    rule = AdaEDL(start=start, target=target, form="tapout" if form == "tapout" else "paper")
    return fixed(Arm(one(drafters, drafter), positive(length), stop=rule.stop), rule)


def hf_threshold(
    drafters: Sequence[str],
    *,
    threshold: float = 0.4,
    refit: bool = True,
    length: int = 20,
    drafter: str = "",
) -> Method:
    """Transformers' default: up to 20 tokens, until one is less likely than a threshold, refitted online.

    The token's own probability is compared with 0.4 at first; each round moves the threshold to the best
    point of the ROC curve over all tokens tested so far, as Transformers does where scikit-learn is there.
    `refit=false` keeps it.
    """
    arm = Arm(one(drafters, drafter), positive(length), stop=Stop("confidence", threshold))
    return fixed(arm, ConfidenceRefit(threshold) if refit else None)


def hf_heuristic(
    drafters: Sequence[str],
    *,
    start: int = 20,
    longest: int = 64,
    transient: bool = False,
    drafter: str = "",
) -> Method:
    """Transformers' heuristic length: two longer after a draft that was right throughout, else one shorter.

    It starts at 20 tokens (5 in older releases); Transformers has no cap, here `longest` is the last arm.
    `transient` starts anew with each text.
    """
    who = one(drafters, drafter)
    arms = tuple(Arm(who, n) for n in range(1, max(positive(start), positive(longest)) + 1))
    return Method(LengthPolicy(arms, start, transient), recorder(arms, "block-efficiency"))


def _rule(drafters: Sequence[str], rule: str, threshold: float, length: int, drafter: str) -> Method:
    return fixed(Arm(one(drafters, drafter), positive(length), stop=Stop(rule, threshold)))
