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

    `test` takes the signals of a token and of the one before it, its position, the product `joint` of `stop`,
    and the rule with its threshold. A `scored` rule calls the classifier of its `Stop`.
    """

    test: Callable[[Signals, Signals | None, int, Any, Stop], Any]
    reads: frozenset[str]
    default: float
    scored: bool = False


RULES: Mapping[str, Rule] = {
    # Drafts to the full length.
    "never": Rule(lambda now, before, position, joint, rule: False, frozenset(), 0.0),
    # TapOut, arXiv 2511.02017, Table 1.
    "max-confidence": Rule(
        lambda now, before, position, joint, rule: now.top1 < rule.threshold, frozenset({"top1"}), 0.8
    ),
    # As TapOut runs it. The SVIP paper (arXiv 2411.18462) has 0.3; its code tests sqrt(0.15 H) > 0.3, which
    # is 0.775.
    "svip": Rule(
        lambda now, before, position, joint, rule: now.entropy**0.5 > rule.threshold,
        frozenset({"entropy"}),
        0.6,
    ),
    # TapOut, Table 1; never at the first position.
    "svip-difference": Rule(
        lambda now, before, position, joint, rule: (
            before is not None and now.entropy**0.5 - before.entropy**0.5 > rule.threshold
        ),
        frozenset({"entropy"}),
        0.2,
    ),
    # AdaEDL, arXiv 2410.18351. The paper applies the rule before it samples from a row; here, as for every
    # rule, the row's own token is drafted and kept first, so a draft is one token longer, whose row was
    # computed anyway. Both are lossless: the rule depends on the row alone. The paper gives no initial
    # lambda; 0.6 is the middle of the range of its sweep, 0.3 to 0.9.
    "adaedl": Rule(
        lambda now, before, position, joint, rule: 1.0 - (0.2 * now.entropy) ** 0.5 < rule.threshold,
        frozenset({"entropy"}),
        0.6,
    ),
    # TapOut, Table 1.
    "logit-margin": Rule(
        lambda now, before, position, joint, rule: now.top1 - now.top2 < rule.threshold,
        frozenset({"top1", "top2"}),
        0.2,
    ),
    # SpecDec++ (arXiv 2405.19715) stops on the same product of *predicted acceptances*, at 1 - 0.7.
    "cumulative": Rule(
        lambda now, before, position, joint, rule: joint < rule.threshold, frozenset({"chosen"}), 0.3
    ),
    # exp of the mean -ln(chosen) over the draft > 2, a geometric mean under one half (ours), in multiplied
    # form, so that a probability of 0 needs no logarithm.
    "perplexity": Rule(
        lambda now, before, position, joint, rule: joint * rule.threshold ** (position + 1) < 1.0,
        frozenset({"chosen"}),
        2.0,
    ),
    # Transformers, `assistant_confidence_threshold`.
    "confidence": Rule(
        lambda now, before, position, joint, rule: now.chosen < rule.threshold, frozenset({"chosen"}), 0.4
    ),
    # The product of calibrated acceptance probabilities < the cost of one more token
    # (`draftwise.policies.auto`).
    "gain": Rule(
        lambda now, before, position, joint, rule: joint < rule.threshold, frozenset({"chosen"}), 0.3, True
    ),
    # DISCO (arXiv 2405.04304) tunes its threshold for speed on each data set and gives none; 0.5 is the
    # classifier's decision boundary.
    "disco": Rule(
        lambda now, before, position, joint, rule: rule.scorer.score(now) < rule.threshold,
        frozenset({"top1", "top2", "top", "place"}),
        0.5,
        True,
    ),
    # 1 minus the product of the classifier's probabilities (SpecDec++, arXiv 2405.19715; its code's example,
    # while its evaluation uses 0.3).
    "specdecpp": Rule(
        lambda now, before, position, joint, rule: 1.0 - joint > rule.threshold,
        frozenset({"hidden"}),
        0.7,
        True,
    ),
}

DEFAULTS: Mapping[str, float] = {name: rule.default for name, rule in RULES.items() if not rule.scored}
"""The default thresholds of the rules without a classifier."""
SCORED = frozenset(RULES.keys() - DEFAULTS.keys())  # rules that call a classifier


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
