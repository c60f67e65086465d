"""Stop rules: after a drafted token, go on or let the target look?

Rules are data (a name and a number), evaluated next to the drafter's logits. Each is one comparison
written with plain operators, so the same function takes floats, NumPy arrays and torch tensors. The
token that triggers a rule stays in the draft, which is what keeps stopping early lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import UserError
from .types import Signals, Stop


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison, the signals it reads, and the threshold its source uses."""

    test: Callable[[Signals, Signals | None, int, Any, float], Any]
    reads: frozenset[str]
    default: float


def _never(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return False


def _max_confidence(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return now.top1 < threshold


def _svip(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return now.entropy**0.5 > threshold


def _svip_difference(
    now: Signals, before: Signals | None, position: int, joint: Any, threshold: float
) -> Any:
    return before is not None and now.entropy**0.5 - before.entropy**0.5 > threshold


def _adaedl(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return 1.0 - (0.2 * now.entropy) ** 0.5 < threshold


def _logit_margin(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return now.top1 - now.top2 < threshold


def _cumulative(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return joint < threshold


def _perplexity(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    # perplexity > threshold, multiplied out: a probability of 0 needs no logarithm
    return joint * threshold ** (position + 1) < 1.0


def _confidence(now: Signals, before: Signals | None, position: int, joint: Any, threshold: float) -> Any:
    return now.chosen < threshold


RULES: Mapping[str, Rule] = {
    "never": Rule(_never, frozenset(), 0.0),
    "max-confidence": Rule(_max_confidence, frozenset({"top1"}), 0.8),
    "svip": Rule(_svip, frozenset({"entropy"}), 0.6),
    "svip-difference": Rule(_svip_difference, frozenset({"entropy"}), 0.2),
    "adaedl": Rule(_adaedl, frozenset({"entropy"}), 0.6),
    "logit-margin": Rule(_logit_margin, frozenset({"top1", "top2"}), 0.2),
    "cumulative": Rule(_cumulative, frozenset({"chosen"}), 0.3),
    "perplexity": Rule(_perplexity, frozenset({"chosen"}), 2.0),
    "confidence": Rule(_confidence, frozenset({"chosen"}), 0.4),
}
"""Every rule by name.

- `never`: drafts to the full length.
- `max-confidence`: top-1 probability < 0.8 (TapOut, arXiv 2511.02017, Table 1).
- `svip`: sqrt(H) > 0.6 as TapOut runs it. SVIP (arXiv 2411.18462) prints 0.3; its code tests
  sqrt(0.15 H) > 0.3, which is 0.775.
- `svip-difference`: sqrt(H_t) - sqrt(H_{t-1}) > 0.2 (TapOut, Table 1); never at the first position.
- `adaedl`: 1 - sqrt(0.2 H) < lambda (AdaEDL, arXiv 2410.18351). The paper asks before it samples from a
  row; here, as for every rule, the row's own token is drafted and kept first, so a draft is one token
  longer for a row that was computed anyway. Both are lossless: the answer depends on the row alone.
  No lambda is printed to start from; 0.6 is the middle of the range it was swept over, 0.3 to 0.9.
- `logit-margin`: top-1 less top-2 probability < 0.2 (TapOut, Table 1).
- `cumulative`: product of the chosen probabilities < 0.3. SpecDec++ (arXiv 2405.19715) stops on the same
  product of *predicted acceptances*, at 1 - 0.7.
- `perplexity`: exp of the mean -ln(chosen) over the draft > 2, a geometric mean under one half (ours).
- `confidence`: probability of the chosen token < 0.4 (Transformers, `assistant_confidence_threshold`).
"""

DEFAULTS: Mapping[str, float] = {name: rule.default for name, rule in RULES.items()}


def stop(rule: Stop, signals: Signals, *, position: int, previous: Signals | None, joint: Any) -> Any:
    """True when the draft should end after the token at `position` (from 0).

    `joint` is the product of the chosen probabilities so far, this token's included. Signals may be
    floats, or arrays of one shape; then the answer is an array of booleans.

    Raises:
        UserError: there is no rule of this name.
    """
    return _rule(rule.rule).test(signals, previous, position, joint, rule.threshold)


@cache
def needs(rules: tuple[Stop, ...]) -> frozenset[str]:
    """The signals that `rules` read, out of top1, top2, entropy and chosen.

    Raises:
        UserError: there is no rule of this name.
    """
    return frozenset().union(*(_rule(r.rule).reads for r in rules))


def _rule(name: str) -> Rule:
    try:
        return RULES[name]
    except KeyError:
        raise UserError(f"no stop rule named {name!r}; there are {', '.join(RULES)}") from None
