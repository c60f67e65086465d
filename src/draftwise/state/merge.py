"""One state file of several: what replicas have learnt apart, as if one of them had seen it all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..inputs import parse_json
from ..policies.adaptive import AdaEDL, HeuristicLength
from ..policies.auto.drafting import DraftCost, Line
from ..policies.auto.passes import PassCost
from ..policies.auto.policy import AutoPolicy
from ..policies.auto.skill import Calibration, Skill
from ..policies.bank import BetaBank
from ..policies.catalogue import method
from ..policies.learners.adanormalhedge import AdaNormalHedge
from ..policies.learners.beta import BetaThompson
from ..policies.learners.ducb import DiscountedUCB
from ..policies.learners.exp3 import EXP3
from ..policies.learners.exp3spec import EXP3Spec
from ..policies.learners.gaussian import GaussianThompson
from ..policies.learners.hedge import Hedge
from ..policies.learners.leader import FollowTheLeader
from ..policies.learners.learner import LEARNED
from ..policies.learners.linucb import LinUCB
from ..policies.learners.normalhedge import NormalHedge
from ..policies.learners.ucb import UCB1
from ..policies.learners.ucbspec import UCBSpec
from ..policies.learners.ucbtuned import UCBTuned
from .file import StateFile, StateWarning

Rule = Callable[[Any, Sequence[Any]], None]


def merge(files: Sequence[str | Path], out: str | Path) -> dict[str, Any]:
    """Write to `out` what several state files of one policy, target and team have learnt together.

    Counts, losses and regrets add up; means are weighted by the counts behind them; thresholds that
    move with the last rounds are averaged. Returns the policy's name and the files.

    Raises:
        UserError: fewer than two files, files of different policies, targets, drafters or arms, a policy
            whose memory cannot be merged (a window, a race), or a file that cannot be read or written.
    """
    if len(files) < 2:
        raise UserError("one state file is no two: name all that are to be merged")
    places = [Path(file).resolve() for file in files]
    if twice := [file for file, place in zip(files, places, strict=True) if places.count(place) > 1]:
        raise UserError(f"{twice[0]} is named twice, and would count twice: name each file once")
    header = _header(Path(files[0]))
    parts = [_loaded(Path(file), header) for file in files]
    fresh = StateFile(out, _policy(header), **_identity(header))
    combine(fresh.policy, parts)
    fresh.save()
    return {"policy": header["policy"], "files": [str(file) for file in files], "out": str(out)}


def combine(into: Any, parts: Sequence[Any]) -> None:
    """Put into a fresh policy, or a part of one, what `parts` of the same shape have learnt.

    Raises:
        UserError: a learner whose memory cannot be merged.
    """
    rule = RULES.get(type(into))
    if rule is not None:
        rule(into, parts)
    elif _own(into):
        raise UserError(
            f"{type(into).__name__} keeps an order of its own ({', '.join(_own(into))}) and cannot be merged"
        )
    for child, *others in zip(_children(into), *map(_children, parts), strict=True):
        combine(child, others)


def _header(path: Path) -> dict[str, Any]:
    try:
        body = parse_json(path.read_bytes())
        return {key: body[key] for key in ("policy", "target", "drafters", "arms")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no state file: name files that draftwise has written") from None


def _policy(header: Mapping[str, Any]) -> Any:
    return method(header["policy"], list(header["drafters"])).policy


def _identity(header: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": header["policy"], "target": header["target"], "drafters": header["drafters"]}


def _loaded(path: Path, header: Mapping[str, Any]) -> Any:
    """The policy as one file has it, which must be of the first one's kind."""
    policy = _policy(header)
    file = StateFile(path, policy, **_identity(header))
    with warnings.catch_warnings():
        warnings.simplefilter("error", StateWarning)
        try:
            found = file.load()
        except StateWarning as warning:
            raise UserError(str(warning)) from None
    if not found:
        raise UserError(f"no state file {path}")
    return policy


def _own(node: Any) -> list[str]:
    """The learned fields that are numbers."""
    learned = [f.name for f in fields(node) if f.metadata == LEARNED and f.name != "flight"]
    return [name for name in learned if not list(_inside(getattr(node, name)))]


def _children(node: Any) -> Iterator[Any]:
    for field in fields(node):
        yield from _inside(getattr(node, field.name))


def _inside(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if is_dataclass(one) and not isinstance(one, type):
            yield one


# -- how each kind adds up ---------------------------------------------------------------------------------


def _adds(*names: str) -> Rule:
    """What each has beyond a blank one."""

    def rule(into: Any, parts: Sequence[Any]) -> None:
        for name in names:
            blank = np.asarray(getattr(into, name), dtype=float)
            total = blank + sum(np.asarray(getattr(part, name), dtype=float) - blank for part in parts)
            kind = int if type(getattr(into, name)) is int else float
            setattr(into, name, total.tolist() if total.ndim else kind(total))

    return rule


def _means(weight: str, *names: str, adds: Sequence[str] = ()) -> Rule:
    """Means by the weight behind them, which adds up."""

    def rule(into: Any, parts: Sequence[Any]) -> None:
        known = [part for part in parts if np.sum(getattr(part, weight)) > 0]
        if known:
            weights = np.array([np.asarray(getattr(part, weight), dtype=float) for part in known])
            for name in names:
                values = np.array([np.asarray(getattr(part, name), dtype=float) for part in known])
                total = weights.sum(0)
                mean = (weights * values).sum(0) / np.where(total > 0, total, 1.0)
                setattr(into, name, mean.tolist())
        _adds(weight, *adds)(into, parts)

    return rule


def _then(first: Rule, second: Callable[[Any], None]) -> Rule:
    def rule(into: Any, parts: Sequence[Any]) -> None:
        first(into, parts)
        second(into)

    return rule


def _averages(*names: str) -> Rule:
    """Means over those that have moved at all."""

    def rule(into: Any, parts: Sequence[Any]) -> None:
        start = [getattr(into, name) for name in names]
        moved = [part for part in parts if [getattr(part, name) for name in names] != start]
        for name, blank in zip(names, start, strict=True):
            if moved:
                mean = sum(getattr(part, name) for part in moved) / len(moved)
                setattr(into, name, round(mean) if type(blank) is int else mean)

    return rule


def _reshape(into: BetaThompson) -> None:
    into.shapes = []
    into.__post_init__()


def _gaussian(into: GaussianThompson, parts: Sequence[GaussianThompson]) -> None:
    """Normal posteriors: precisions add, and precisions times means."""
    start = np.array(into.means) * np.array(into.precisions)
    gained = sum(np.array(p.means) * np.array(p.precisions) - start for p in parts)
    _adds("precisions")(into, parts)
    into.means = ((start + gained) / np.array(into.precisions)).tolist()


def _linucb(into: LinUCB, parts: Sequence[LinUCB]) -> None:
    """Ridge regressions: X'X and X'y add."""
    d = into.dimensions
    ridge = np.eye(d) * into.ridge
    for arm in range(into.arms):
        grams = [np.linalg.inv(np.array(p.inverses[arm]).reshape(d, d)) for p in parts]
        sums = sum(gram @ np.array(p.thetas[arm]) for gram, p in zip(grams, parts, strict=True))
        inverse = np.linalg.inv(ridge + sum(gram - ridge for gram in grams))
        into.inverses[arm], into.thetas[arm] = inverse.ravel().tolist(), (inverse @ sums).tolist()


def _passes(into: PassCost, parts: Sequence[PassCost]) -> None:
    """Sizes of pass by their counts, what a request adds by all counts; each size is as old as its newest."""
    _means("counts", "means", "middles")(into, parts)
    _blend(into, parts, ["extra"], [sum(part.counts) for part in parts])
    into.passes = sum(part.passes for part in parts)
    for at in range(len(into.met)):
        ages = [part.passes - part.met[at] for part in parts if part.met[at]]
        into.met[at] = into.passes - min(ages) if ages else 0.0


def _drafts(into: DraftCost, parts: Sequence[DraftCost]) -> None:
    """What goes with a drafter's calls, by their number; the calls themselves are merged as such."""
    _blend(into, parts, _own(into), [sum(line.readings for line in _children(part)) for part in parts])


def _blend(into: Any, parts: Sequence[Any], names: Sequence[str], weights: Sequence[float]) -> None:
    for name in names:
        known = [(w, getattr(p, name)) for w, p in zip(weights, parts, strict=True) if w and getattr(p, name)]
        if known:
            behind, values = zip(*known, strict=True)
            setattr(into, name, np.average(np.array(values), axis=0, weights=behind).tolist())


def _auto(into: AutoPolicy, parts: Sequence[AutoPolicy]) -> None:
    """Tokens and seconds add; the usual length of an answer is a mean over those who know one."""
    _adds("tokens", "seconds")(into, parts)
    answers = [part.answer for part in parts if part.answer]
    into.answer = sum(answers) / len(answers) if answers else 0.0


RULES: Mapping[type, Rule] = {
    AdaEDL: _averages("threshold", "rate"),
    AdaNormalHedge: _adds("regrets", "sizes"),
    AutoPolicy: _auto,
    BetaBank: _adds("successes", "failures"),
    BetaThompson: _then(_adds("successes", "failures"), _reshape),
    Calibration: _means("seen", "bias", "slope"),
    DraftCost: _drafts,
    DiscountedUCB: _adds("pulls", "sums"),
    EXP3: _adds("logs"),
    EXP3Spec: _adds("losses", "rounds"),
    FollowTheLeader: _adds("losses", "counts"),
    GaussianThompson: _gaussian,
    Hedge: _adds("losses", "rounds"),
    HeuristicLength: _averages("length"),
    Line: _means("readings", "start", "each", adds=["sums"]),
    LinUCB: _linucb,
    # a step without losses weighs the arms by the regrets as they are now
    NormalHedge: _then(_adds("regrets"), lambda into: into.learn_all([0.0] * into.arms)),
    PassCost: _passes,
    Skill: _adds("tested", "accepted"),
    UCB1: _adds("pulls", "sums"),
    UCBSpec: _adds("pulls", "sums"),
    UCBTuned: _adds("pulls", "sums", "squares"),
}
