"""Stop rules: after a drafted token, continue drafting or verify?

Rules are data (a name and a threshold; two also have a classifier), evaluated next to the drafter's logits.
Each is one comparison written with plain operators, so the same function takes floats, NumPy arrays and torch
tensors. The token that triggers a rule stays in the draft, which keeps early stopping lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import UserError
from .arms import Stop
from .drafts import Signals

TOP = 10  # how many of the top probabilities a rule may read


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison, the signals it reads, and the threshold used in its source.

    A `scored` rule calls the classifier of its `Stop`.
    """

    test: Callable[[Signals, Signals | None, int, Any, Stop], Any]
    reads: frozenset[str]
    default: float
    scored: bool = False


def _never(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return False


def _max_confidence(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return now.top1 < rule.threshold


def _svip(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return now.entropy**0.5 > rule.threshold


def _svip_difference(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return before is not None and now.entropy**0.5 - before.entropy**0.5 > rule.threshold


def _adaedl(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return 1.0 - (0.2 * now.entropy) ** 0.5 < rule.threshold


def _logit_margin(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return now.top1 - now.top2 < rule.threshold


def _cumulative(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return joint < rule.threshold


def _perplexity(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    # perplexity > threshold in multiplied form, so that a probability of 0 needs no logarithm
    return joint * rule.threshold ** (position + 1) < 1.0


def _confidence(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return now.chosen < rule.threshold


def _gain(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return joint < rule.threshold


def _disco(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return rule.scorer.score(now) < rule.threshold


def _specdecpp(now: Signals, before: Signals | None, position: int, joint: Any, rule: Stop) -> Any:
    return 1.0 - joint > rule.threshold


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
    "gain": Rule(_gain, frozenset({"chosen"}), 0.3, scored=True),
    "disco": Rule(_disco, frozenset({"top1", "top2", "top", "place"}), 0.5, scored=True),
    "specdecpp": Rule(_specdecpp, frozenset({"hidden"}), 0.7, scored=True),
}
"""Every rule by name.

- `never`: drafts to the full length.
- `max-confidence`: top-1 probability < 0.8 (TapOut, arXiv 2511.02017, Table 1).
- `svip`: sqrt(H) > 0.6 as TapOut runs it. The SVIP paper (arXiv 2411.18462) has 0.3; its code tests
  sqrt(0.15 H) > 0.3, which is 0.775.
- `svip-difference`: sqrt(H_t) - sqrt(H_{t-1}) > 0.2 (TapOut, Table 1); never at the first position.
- `adaedl`: 1 - sqrt(0.2 H) < lambda (AdaEDL, arXiv 2410.18351). The paper applies the rule before it samples
  from a row; here, as for every rule, the row's own token is drafted and kept first, so a draft is one
  token longer, whose row was computed anyway. Both are lossless: the rule depends on the row alone. The
  paper gives no initial lambda; 0.6 is the middle of the range of its sweep, 0.3 to 0.9.
- `logit-margin`: top-1 minus top-2 probability < 0.2 (TapOut, Table 1).
- `cumulative`: product of the chosen probabilities < 0.3. SpecDec++ (arXiv 2405.19715) stops on the same
  product of *predicted acceptances*, at 1 - 0.7.
- `perplexity`: exp of the mean -ln(chosen) over the draft > 2, a geometric mean under one half (ours).
- `confidence`: probability of the chosen token < 0.4 (Transformers, `assistant_confidence_threshold`).
- `gain`: the product of calibrated acceptance probabilities < the cost of one more token
  (`draftwise.policies.auto`).
- `disco`: the classifier's acceptance probability of the token < 0.5. DISCO (arXiv 2405.04304) tunes its
  threshold for speed on each data set and gives none; 0.5 is the classifier's decision boundary.
- `specdecpp`: 1 minus the product of the classifier's probabilities > 0.7 (SpecDec++, arXiv 2405.19715;
  its code's example, while its evaluation uses 0.3).
"""

DEFAULTS: Mapping[str, float] = {name: rule.default for name, rule in RULES.items() if not rule.scored}
SCORED = frozenset(RULES.keys() - DEFAULTS.keys())  # rules that call a classifier
"""The default thresholds of the rules without a classifier."""


def stop(rule: Stop, signals: Signals, *, position: int, previous: Signals | None, joint: Any) -> Any:
    """True when the draft should end after the token at `position` (from 0).

    `joint` is the product of `factor` over the draft so far, including this token. Signals may be floats, or
    arrays of one shape; the result is then an array of booleans. A rule with a classifier takes floats.

    Raises:
        UserError: unknown rule, or a learned rule without its classifier.
    """
    test = _rule(rule).test
    return position + 1 >= rule.shortest and test(signals, previous, position, joint, rule)


def factor(rule: Stop, signals: Signals, *, position: int) -> Any:
    """Return the factor of the token at `position` in the product `joint` passed to `stop`: its probability.

    For `specdecpp` it is the classifier's acceptance probability. The classifier reads the hidden state after
    a token, so at each position it judges the previous token. At the first position that is a committed
    token, which counts as 1, as in the paper's code.

    Raises:
        UserError: the rule has no classifier, or the drafter provides no hidden state for it.
    """
    if rule.rule not in ("specdecpp", "gain"):
        return signals.chosen
    _rule(rule)
    return rule.scorer.score(signals) if position or rule.rule == "gain" else 1.0


def needs(rules: tuple[Stop, ...]) -> frozenset[str]:
    """Return the signals that `rules` read, by field name.

    Raises:
        UserError: unknown rule, or a learned rule without its classifier.
    """
    # by name: a rule with a moving threshold is a new object each round, and a draft may have 128 of them
    names = frozenset([rule.rule for rule in rules])
    if not names.isdisjoint(SCORED):
        for rule in rules:
            _rule(rule)
    return _reads(names)


@cache
def _reads(names: frozenset[str]) -> frozenset[str]:
    return frozenset().union(*(_named(name).reads for name in names))


def _named(name: str) -> Rule:
    try:
        return RULES[name]
    except KeyError:
        raise UserError(f"no stop rule named {name!r}; there are {', '.join(RULES)}") from None


def _rule(asked: Stop) -> Rule:
    rule = _named(asked.rule)
    if rule.scored and asked.scorer is None:
        raise UserError(f"the stop rule {asked.rule} asks a classifier: {asked.rule}?model=FILE gives it one")
    return rule
