"""Stop rules at hand-made signals, on floats and on arrays."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Signals
from draftwise.core.stops import DEFAULTS, RULES, factor, needs, stop
from draftwise.errors import UserError
from draftwise.policies.auto.chances import Calibration
from draftwise.policies.classifiers.stopping import Disco, SpecDecPlus


def signals(top1: float = 0.5, top2: float = 0.25, entropy: float = 1.0, chosen: float = 0.5) -> Signals:
    return Signals(top1, top2, entropy, chosen)


def asked(
    rule: str,
    now: Signals,
    *,
    threshold: float | None = None,
    position: int = 0,
    previous: Signals | None = None,
    joint: float = 0.5,
) -> bool:
    rule_now = Stop(rule, DEFAULTS[rule] if threshold is None else threshold)
    return bool(stop(rule_now, now, position=position, previous=previous, joint=joint))


def test_defaults_are_the_published_numbers() -> None:
    assert dict(DEFAULTS) == {
        "never": 0.0,
        "max-confidence": 0.8,
        "svip": 0.6,
        "svip-difference": 0.2,
        "adaedl": 0.6,
        "logit-margin": 0.2,
        "cumulative": 0.3,
        "perplexity": 2.0,
        "confidence": 0.4,
    }


CALM = signals(entropy=0.25)  # root 0.5
DECISIONS: list[tuple[str, Signals, dict[str, Any], bool]] = [
    ("never", signals(top1=0.0, entropy=0.0, chosen=0.0), {"joint": 0.0}, False),
    ("never", signals(top1=0.0, entropy=5.0, chosen=0.0), {"joint": 0.0}, False),
    ("max-confidence", signals(top1=0.79), {}, True),
    ("max-confidence", signals(top1=0.81), {}, False),
    ("svip", signals(entropy=0.35), {}, False),  # as TapOut
    ("svip", signals(entropy=0.37), {}, True),
    ("svip", signals(entropy=0.0899), {"threshold": 0.3}, False),  # SVIP's paper
    ("svip", signals(entropy=0.0901), {"threshold": 0.3}, True),
    ("svip", signals(entropy=0.6), {"threshold": 0.775}, False),  # SVIP's code
    ("svip", signals(entropy=0.601), {"threshold": 0.775}, True),
    ("svip-difference", signals(entropy=0.4761), {"previous": CALM, "position": 1}, False),  # root 0.69
    ("svip-difference", signals(entropy=0.5041), {"previous": CALM, "position": 1}, True),  # root 0.71
    ("svip-difference", signals(entropy=9.0), {}, False),  # there is no jump at the first position
    ("adaedl", signals(entropy=0.79), {}, False),  # 1 - sqrt(0.2 * 0.8) = 0.6
    ("adaedl", signals(entropy=0.81), {}, True),
    ("adaedl", signals(entropy=0.81), {"threshold": 0.5}, False),
    ("logit-margin", signals(top1=0.5, top2=0.31), {}, True),
    ("logit-margin", signals(top1=0.5, top2=0.29), {}, False),
    ("cumulative", signals(), {"joint": 0.29}, True),
    ("cumulative", signals(), {"joint": 0.31}, False),
    ("perplexity", signals(), {"position": 2, "joint": 0.126}, False),  # 2 of three tokens: a product of 1/8
    ("perplexity", signals(), {"position": 2, "joint": 0.124}, True),
    ("perplexity", signals(), {"joint": 0.0}, True),
    ("perplexity", signals(), {"joint": 0.24, "threshold": 4.0}, True),
    ("perplexity", signals(), {"joint": 0.26, "threshold": 4.0}, False),
    ("confidence", signals(top1=0.9, chosen=0.39), {}, True),
    ("confidence", signals(top1=0.9, chosen=0.41), {}, False),
    # At the threshold itself drafting goes on: every source's comparison is a strict one.
    ("max-confidence", signals(), {"threshold": 0.5}, False),
    ("svip", signals(), {"threshold": 1.0}, False),
    (
        "svip-difference",
        signals(entropy=4.0),
        {"threshold": 1.0, "position": 1, "previous": signals()},
        False,
    ),
    ("adaedl", signals(entropy=5.0), {"threshold": 0.0}, False),
    ("logit-margin", signals(), {"threshold": 0.25}, False),
    ("cumulative", signals(), {"threshold": 0.5}, False),
    ("perplexity", signals(), {}, False),
    ("confidence", signals(), {"threshold": 0.5}, False),
]


@pytest.mark.parametrize(("rule", "now", "more", "stops"), DECISIONS)
def test_each_rule_stops_beyond_its_threshold(
    rule: str, now: Signals, more: dict[str, Any], stops: bool
) -> None:
    assert asked(rule, now, **more) == stops


def test_the_same_rules_take_arrays() -> None:
    torch = pytest.importorskip("torch")
    rows = [
        signals(0.9, 0.05, 0.1, 0.9),
        signals(0.5, 0.45, 1.5, 0.45),
        signals(0.7, 0.2, 0.7, 0.2),
        signals(0.2, 0.19, 3.0, 0.01),
    ]
    before, joints = signals(entropy=0.36), [0.9, 0.4, 0.2, 0.001]
    for make in (np.array, torch.tensor):
        numbers = ("top1", "top2", "entropy", "chosen")
        columns: list[Any] = [make([getattr(s, name) for s in rows]) for name in numbers]
        now = Signals(*columns)
        for rule in set(DEFAULTS) - {"never"}:
            how = Stop(rule, DEFAULTS[rule])
            many = stop(how, now, position=1, previous=before, joint=make(joints))
            one = [
                asked(rule, s, position=1, previous=before, joint=j)
                for s, j in zip(rows, joints, strict=True)
            ]
            assert many.tolist() == one, rule
            assert 0 < sum(one) < 4, f"{rule}: the rows must tell its answers apart"


class OnlyReads:
    """Signals that complain when a rule reads what it did not declare."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def __getattr__(self, name: str) -> Any:
        assert name in self.names, f"reads {name} without saying so"
        return {"top": (), "place": 3, "hidden": np.ones(2)}.get(name, 0.5)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


SCORERS: dict[str, Any] = {
    "disco": Disco(ones(1, 12), ones(1), ones(1, 1), ones(1)),
    "specdecpp": SpecDecPlus((), ones(2, 2), ones(2)),
    "gain": Calibration(),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_read_what_they_declare(rule: str) -> None:
    how = Stop(rule, RULES[rule].default, SCORERS.get(rule))
    reads: Any = OnlyReads(needs((how,)))
    stop(how, reads, position=1, previous=reads, joint=0.5)
    if rule in ("specdecpp", "gain"):
        factor(how, reads, position=1)


class Says:
    """A classifier that gives the chances it was told, in turn."""

    def __init__(self, *chances: float) -> None:
        self.chances = iter(chances)

    def score(self, now: Signals) -> float:
        return next(self.chances)


def test_disco_asks_for_the_chance_of_the_token() -> None:
    assert RULES["disco"].default == 0.5
    how = Stop("disco", 0.5, Says(0.49, 0.51))
    assert stop(how, signals(), position=0, previous=None, joint=1.0)
    assert not stop(how, signals(), position=0, previous=None, joint=0.0)


def drafted(how: Stop, length: int) -> int:
    """The tokens of a draft under a rule."""
    joint = 1.0
    for position in range(length):
        joint *= factor(how, signals(), position=position)
        if stop(how, signals(), position=position, previous=None, joint=joint):
            return position + 1
    return length


def test_specdecpp_asks_for_the_product_and_lags_a_token() -> None:
    # 1 - 0.8 * 0.6 * 0.6 = 0.712 > 0.7 after three predictions, the first of them at the second token
    assert RULES["specdecpp"].default == 0.7
    assert drafted(Stop("specdecpp", 0.7, Says(0.8, 0.6, 0.6, 0.0)), 20) == 4
    assert drafted(Stop("specdecpp", 0.72, Says(0.8, 0.6, 0.6, 0.9, 0.0)), 20) == 5
    assert drafted(Stop("specdecpp", 0.7, Says(0.0)), 20) == 2, "the first token is not judged"
    assert drafted(Stop("specdecpp", 0.7, Says(*[1.0] * 20)), 20) == 20


def test_what_was_predicted_early_still_counts_when_the_draft_is_long_enough_to_stop() -> None:
    how = Stop("specdecpp", 0.7, Says(0.2, 1.0, 1.0, 1.0, 1.0), shortest=4)
    assert drafted(how, 20) == 4


@pytest.mark.parametrize("shortest", [1, 3])
def test_no_rule_fires_before_the_shortest_draft(shortest: int) -> None:
    assert drafted(Stop("max-confidence", 0.8, shortest=shortest), 9) == shortest


def test_the_factor_of_other_rules_is_the_probability_of_the_token() -> None:
    for rule in DEFAULTS:
        assert factor(Stop(rule), signals(chosen=0.3), position=2) == 0.3
    assert factor(Stop("disco", 0.5, Says()), signals(chosen=0.3), position=0) == 0.3


@pytest.mark.parametrize("rule", ["disco", "specdecpp"])
def test_a_learned_rule_without_its_classifier_says_what_to_give(rule: str) -> None:
    for ask in (
        lambda: needs((Stop(rule, 0.5),)),
        lambda: stop(Stop(rule, 0.5), signals(), position=1, previous=None, joint=1.0),
    ):
        with pytest.raises(UserError, match=rf"{rule} asks a classifier: {rule}\?model=FILE"):
            ask()
    with pytest.raises(UserError, match="asks a classifier"):
        factor(Stop("specdecpp", 0.5), signals(), position=1)


def test_rules_of_two_classifiers_are_two_rules() -> None:
    one, other = Stop("disco", 0.5, SCORERS["disco"]), Stop("disco", 0.5, Says(0.5))
    assert one == Stop("disco", 0.5, SCORERS["disco"]) and one != other
    assert len({one, other, Stop("disco", 0.5, SCORERS["disco"])}) == 2
    assert needs((one,)) == needs((other,)) == {"top1", "top2", "top", "place"}
    assert Arm("d", 4, stop=one).name == "d:4~disco(0.5)"


def test_needs_is_the_union() -> None:
    assert needs(()) == frozenset()
    assert needs((Stop("never"),)) == frozenset()
    assert needs((Stop("svip"), Stop("adaedl"))) == {"entropy"}
    assert needs((Stop("logit-margin"), Stop("cumulative"))) == {"top1", "top2", "chosen"}


@pytest.mark.parametrize(
    "ask", [lambda r: needs((r,)), lambda r: stop(r, signals(), position=0, previous=None, joint=1)]
)
def test_an_unknown_rule_is_named_with_those_there_are(ask: Any) -> None:
    with pytest.raises(UserError, match=r"'svipp'.*never, max-confidence, svip"):
        ask(Stop("svipp", inf))
