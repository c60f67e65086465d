"""One drafter and one rule: nothing is chosen, at most a threshold or a length moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ...core.arms import Arm, Stop
from ...errors import UserError
from ...registry import Within
from ..adaptive import AdaEDL, ConfidenceRefit, LengthPolicy
from ..arms import one, parse_stop, positive
from .compose import Method, fixed, recorder
from .options import Drafter, Longest, PerQuery, Threshold


def none(drafters: Sequence[str]) -> Method:
    """Plain decoding, without drafts.

    Source: baseline.
    """
    return fixed(Arm("none", 0))


def static(
    drafters: Sequence[str],
    *,
    length: Longest = 5,
    drafter: Drafter = "",
    stop: Annotated[str, "a stop rule such as svip(0.6), or never"] = "never",
) -> Method:
    """One drafter and one draft length, with an optional stop rule; `static-4` is `static?length=4`.

    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).
    """
    return fixed(Arm(one(drafters, drafter), positive(length), stop=parse_stop(stop)))


def max_confidence(
    drafters: Sequence[str], *, threshold: Threshold = 0.8, length: Longest = 128, drafter: Drafter = ""
) -> Method:
    """Drafts while the most probable token has a probability of at least the threshold.

    Source: TapOut (arXiv 2511.02017), Table 1.
    """
    return _rule(drafters, "max-confidence", threshold, length, drafter)


def svip(
    drafters: Sequence[str],
    *,
    form: Annotated[str, "whose threshold: tapout, paper or code"] = "tapout",
    threshold: Annotated[float, "the threshold; 0: that of the form"] = 0.0,
    length: Longest = 40,
    drafter: Drafter = "",
) -> Method:
    """Drafts while the square root of the entropy stays below a threshold.

    The default threshold is 0.6 with `form=tapout`, 0.3 with `form=paper`, and 0.775 with `form=code`:
    SVIP's code tests sqrt(0.15 H) > 0.3.

    Source: SVIP (arXiv 2411.18462).
    """
    known = {"tapout": 0.6, "paper": 0.3, "code": 0.3 / 0.15**0.5}
    if form not in known:
        raise UserError(f"svip?form={form}: choose from {', '.join(known)}")
    return _rule(drafters, "svip", threshold or known[form], length, drafter)


def svip_difference(
    drafters: Sequence[str], *, threshold: Threshold = 0.2, length: Longest = 128, drafter: Drafter = ""
) -> Method:
    """Drafts until the square root of the entropy rises by more than the threshold.

    Source: TapOut (arXiv 2511.02017), Table 1.
    """
    return _rule(drafters, "svip-difference", threshold, length, drafter)


def logit_margin(
    drafters: Sequence[str], *, threshold: Threshold = 0.2, length: Longest = 128, drafter: Drafter = ""
) -> Method:
    """Drafts while the two most probable tokens differ in probability by at least the threshold.

    Source: TapOut (arXiv 2511.02017), Table 1.
    """
    return _rule(drafters, "logit-margin", threshold, length, drafter)


def adaedl(
    drafters: Sequence[str],
    *,
    form: Annotated[str, "whose update of the threshold: paper or tapout"] = "paper",
    start: Annotated[float, "the first threshold"] = 0.6,
    target: Annotated[float, "the acceptance rate that the threshold aims at", Within(0.0, 1.0)] = 0.9,
    length: Longest = 40,
    drafter: Drafter = "",
) -> Method:
    """Drafts while 1 - sqrt(0.2 H) stays above a threshold that follows the acceptance rate.

    Source: AdaEDL (arXiv 2410.18351).
    """
    if form not in ("paper", "tapout"):
        raise UserError(f"adaedl?form={form}: choose from paper, tapout")
    rule = AdaEDL(start=start, target=target, form="tapout" if form == "tapout" else "paper")
    return fixed(Arm(one(drafters, drafter), positive(length), stop=rule.stop), rule)


def hf_threshold(
    drafters: Sequence[str],
    *,
    threshold: Threshold = 0.4,
    refit: Annotated[bool, "refit the threshold after each round"] = True,
    per_query: PerQuery = True,
    length: Longest = 20,
    drafter: Drafter = "",
) -> Method:
    """Drafts until a token is less probable than a threshold, which is refitted after each round.

    The default of Transformers. Each round moves the threshold to the best point of the ROC curve over all
    tokens of the text that were tested so far, as Transformers does where scikit-learn is installed. Each
    call of its `generate` starts with no tokens and the first threshold (release 5.23 copies the assistant's
    settings); `per_query=false` keeps both from text to text.

    Source: Transformers (assisted generation).
    """
    arm = Arm(one(drafters, drafter), positive(length), stop=Stop("confidence", threshold))
    return fixed(arm, ConfidenceRefit(threshold) if refit else None, per_query=per_query)


def hf_heuristic(
    drafters: Sequence[str],
    *,
    start: Annotated[int, "the first draft length"] = 20,
    longest: Annotated[int, "the longest draft length"] = 64,
    transient: Annotated[bool, "start again with each request"] = False,
    drafter: Drafter = "",
) -> Method:
    """The draft length grows by two after a fully accepted draft and shrinks by one otherwise.

    Transformers starts at 20 tokens (5 in older releases) and has no longest length.

    Source: Transformers (assisted generation).
    """
    who = one(drafters, drafter)
    if positive(start, "start") > positive(longest, "longest"):
        raise UserError(f"hf-heuristic?start={start}&longest={longest}: give start <= longest")
    arms = tuple(Arm(who, n) for n in range(1, longest + 1))
    return Method(LengthPolicy(arms, start, transient), recorder(arms, "block-efficiency"))


def _rule(drafters: Sequence[str], rule: str, threshold: float, length: int, drafter: str) -> Method:
    return fixed(Arm(one(drafters, drafter), positive(length), stop=Stop(rule, threshold)))
