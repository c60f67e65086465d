"""Merging state files: what two have learned apart, as if one had seen it all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from draftwise.cli import main
from draftwise.core.arms import Arm, Context
from draftwise.core.outcomes import Feedback, Outcome, RoundCost, Window
from draftwise.errors import UserError
from draftwise.policies.auto.chances import Acceptance, Calibration
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.policies.auto.prices import Line, PassPrice, RoundCosts
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.catalogue import method
from draftwise.policies.learners.exp3 import EXP3, EXP3Spec
from draftwise.policies.learners.hedge import Hedge, NormalHedge
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, SlidingWindowUCB, UCBTuned
from draftwise.policies.tokens import BetaBank
from draftwise.state.file import StateFile, _seal
from draftwise.state.file import merge as merge_files
from draftwise.state.learned import adds, combine, dump, follows, learned

DRAFTERS = ["ngram", "suffix"]
K = 3
Step = Callable[[Any, Random], None]


KEPT = [
    "ucb1",
    "tapout-seq-ts?drafter=ngram",
    "tapout-token-ts?drafter=ngram",
    "tapout-token-ucb1?drafter=ngram",
    "metasd-exp3?per_query=false&reward=accepted",
    "metasd-ducb?per_query=false&reward=accepted",
    "hedgespec?per_query=false",
    "exp3spec?per_query=false",
    "linucb?reward=accepted",
    "adaedl",
    "hf-heuristic",
    "auto",
]


def played(learner: Any, rng: Random) -> None:
    learner.update(rng.randrange(K), rng.random(), 0.2 + 0.8 * rng.random())


def watched(learner: Any, rng: Random) -> None:
    learner.learn_all([rng.random() for _ in range(K)])


def seen(learner: Any, rng: Random) -> None:
    learner.update(rng.randrange(K), rng.random(), 1.0, [1.0, rng.random()])


def drafted(bank: Any, rng: Random) -> None:
    bank.update([rng.randrange(K) for _ in range(4)], rng.randrange(5))


ADDING: list[tuple[Callable[[], Any], Step]] = [
    (lambda: UCB1(K), played),
    (lambda: UCBTuned(K), played),
    (lambda: GaussianThompson(K, mean=0.3), played),
    (lambda: EXP3(K, gamma=0.3), played),
    (lambda: EXP3Spec(K), played),
    (lambda: Hedge(K), watched),
    (lambda: LinUCB(K, 2, ridge=0.7), seen),
    (lambda: BetaBank(K, 4), drafted),
]


def test_regrets_add_up_and_the_weights_are_theirs() -> None:
    parts = [NormalHedge(K), NormalHedge(K)]
    for k, part in enumerate(parts):
        for _ in range(20):
            watched(part, Random(k))
    merged = NormalHedge(K)
    combine(merged, parts)
    assert merged.regrets == pytest.approx(
        [a + b for a, b in zip(parts[0].regrets, parts[1].regrets, strict=True)]
    )
    assert max(range(K), key=merged.weights.__getitem__) == max(range(K), key=merged.regrets.__getitem__)
    assert sum(merged.weights) == pytest.approx(1.0)


def test_what_passes_cost_is_a_mean_by_what_is_behind_it() -> None:
    few, many, merged = PassPrice(), PassPrice(), PassPrice()
    for _ in range(4):
        few.add(3, 1.0)
    for _ in range(12):
        many.add(3, 2.0)
    for _ in range(4):
        many.add(9, 5.0)
    combine(merged, [few, many])
    at = next(i for i, n in enumerate(few.counts) if n)
    a, b = few.counts[at], many.counts[at]
    assert merged.means[at] == pytest.approx((a * few.means[at] + b * many.means[at]) / (a + b))
    assert merged.counts[at] == a + b and 1.0 < merged.usual(3) < 2.0 < merged(9)


def test_lines_calibrations_and_chances_merge() -> None:
    lines, line = [Line(), Line()], Line()
    for part, price in zip(lines, (1.0, 3.0), strict=True):
        for tokens in range(1, 30):
            part.add(tokens, price * tokens)
    combine(line, lines)
    assert line.each == pytest.approx(2.0, rel=0.1)
    line.add(10, 20.0)
    assert line.each == pytest.approx(2.0, rel=0.1)
    marks, mark = [Calibration(), Calibration()], Calibration()
    for judged, accept in zip(marks, (1.0, 0.0), strict=True):
        for _ in range(50):
            judged.learn(0.5, accept)
    combine(mark, marks)
    assert mark.seen == 100 and mark.bias == pytest.approx((marks[0].bias + marks[1].bias) / 2)
    parts, both = [Acceptance(4, 2), Acceptance(4, 2)], Acceptance(4, 2)
    parts[0].learn(1, [1.0, 0.0], 7)
    parts[1].learn(1, [1.0, 1.0, 0.0], 7)
    combine(both, parts)
    assert both.tested[1] == [2.0, 2.0, 1.0, 0.0] and both.accepted[1] == [2.0, 1.0, 0.0, 0.0]
    assert both.last_accepted[7] == 2.0 and both.last_expected[7] == 1.0, "one half each"
    assert both.survival(1)[0] == pytest.approx(0.6) and both.survival(0)[0] == 0.5


def test_a_field_without_a_rule_is_refused_by_name() -> None:
    said = r"^SlidingWindowUCB\.recent_arms has no rule for merging: declare it with metadata=learned\(rule\)"
    parts = [SlidingWindowUCB(K), SlidingWindowUCB(K)]
    with pytest.raises(UserError, match=said) as refused:
        combine(SlidingWindowUCB(K), parts)
    assert "\n" not in str(refused.value)


@dataclass
class Own:
    """A learner of a plug-in: greedy by means, which it computes from counts and sums."""

    arms: int
    last: int = -1
    counts: list[int] = field(default_factory=list, metadata=learned(adds))
    sums: list[float] = field(default_factory=list, metadata=learned(adds))
    by_arm: dict[int, float] = field(default_factory=dict, metadata=learned(adds))
    best: float = field(default=0.0, metadata=learned(lambda blank, parts, name: max(p.best for p in parts)))
    means: list[float] = field(default_factory=list, metadata=learned(follows))

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * self.arms
        self.sums = self.sums or [0.0] * self.arms
        self.merged()

    def merged(self) -> None:
        self.means = [s / n if n else 0.0 for s, n in zip(self.sums, self.counts, strict=True)]

    def choose(self, allowed: Sequence[int], rng: Random) -> tuple[int, float]:
        return max(allowed, key=self.means.__getitem__), 1.0

    def update(self, arm: int, reward: float, propensity: float) -> None:
        self.last = arm
        self.counts[arm] += 1
        self.sums[arm] += reward
        self.best = max(self.best, reward)
        self.by_arm[arm] = self.by_arm.get(arm, 0.0) + reward
        self.merged()

    def abort(self, arm: int) -> None: ...

    def estimates(self) -> list[float]:
        return self.means


def own(name: str, drafters: Sequence[str]) -> BanditPolicy:
    return BanditPolicy(tuple(Arm(drafter, 4) for drafter in drafters), Own)


def own_files(folder: Path) -> tuple[list[Path], list[Own]]:
    """Two state files of a plug-in's policy, and the learners in them."""
    paths, learners = [], []
    for seed in (1, 2):
        policy = own("own", DRAFTERS)
        path = folder / f"{seed}.json"
        file = StateFile(path, policy, name="own", target="t", drafters=dict.fromkeys(DRAFTERS, "d"))
        mine, rng = policy.shared, Random(seed)
        assert isinstance(mine, Own)
        for _ in range(10 * seed):
            mine.update(rng.randrange(2), rng.random(), 1.0)
        file.save()
        paths.append(path)
        learners.append(mine)
    return paths, learners


def test_a_learner_of_a_plug_in_is_merged_by_its_own_rules(tmp_path: Path) -> None:
    paths, (one, two) = own_files(tmp_path)
    merge_files(paths, tmp_path / "both.json", new_policy=own)
    both = numbers(tmp_path / "both.json")["shared"]
    assert both["counts"] == [a + b for a, b in zip(one.counts, two.counts, strict=True)]
    assert both["sums"] == pytest.approx([a + b for a, b in zip(one.sums, two.sums, strict=True)])
    assert both["best"] == max(one.best, two.best)
    assert both["by_arm"] == {str(k): pytest.approx(total) for k, total in enumerate(both["sums"])}
    assert both["means"] == pytest.approx([s / n for s, n in zip(both["sums"], both["counts"], strict=True)])


def test_what_the_result_replaces_does_not_count_again(tmp_path: Path) -> None:
    """Files are merged every night into the same one, or into the first of them."""
    paths, (one, two) = own_files(tmp_path)
    expected = [a + b for a, b in zip(one.counts, two.counts, strict=True)]
    for out in (tmp_path / "both.json", tmp_path / "both.json", paths[0]):
        merge_files(paths, out, new_policy=own)
        assert numbers(out)["shared"]["counts"] == expected


def merge(files: Sequence[Path], out: Path) -> dict[str, Any]:
    """As the command does."""
    return merge_files(files, out, new_policy=lambda name, drafters: method(name, drafters).policy)


def taught(name: str, seed: int) -> Any:
    """A policy that has learned from made-up rounds."""
    policy, rng = method(name, DRAFTERS).policy, Random(seed)
    for k in range(40):
        hints = dict.fromkeys(DRAFTERS, 3.0)
        decision = policy.choose(Context(0, hints=hints, length=20 + k, position=k), rng)
        length = policy.arms[decision.arm].length
        accepted = rng.randrange(length + 1)
        spent = RoundCost(0.001 * length, 0.02, 1 + length)
        outcome = Outcome(decision.arm, accepted, length, 0.02, False, accepted / 16, cost=spent)
        losses = tuple(rng.random() for _ in policy.arms)
        windows = (Window(rng.randrange(2), 2, (1.0,) * accepted + (0.0,)),)
        policy.learn(Feedback(0, decision, (outcome,), losses, windows if name == "auto" else ()))
        if isinstance(policy, AutoPolicy):
            costs = RoundCosts(spent, [], {0: (0.02, 1 + accepted)}, [0], False, policy.trial)
            policy.spent(costs, 0.0)
    policy.close(0)
    return policy


def saved(path: Path, name: str, policy: Any) -> Path:
    fresh = method(name, DRAFTERS).policy
    file = StateFile(path, fresh, name=name, target="t", drafters=dict.fromkeys(DRAFTERS, "d"))
    file.policy = policy
    file.save()
    return path


@pytest.mark.parametrize("name", KEPT)
def test_files_of_every_policy_that_keeps_something_merge(name: str, tmp_path: Path) -> None:
    one, two = (saved(tmp_path / f"{seed}.json", name, taught(name, seed)) for seed in (1, 2))
    told = merge([one, two], tmp_path / "both.json")
    assert told["policy"] == name
    merge([two, one], tmp_path / "turned.json")
    both, turned = numbers(tmp_path / "both.json"), numbers(tmp_path / "turned.json")
    assert close(both, turned)
    assert both != numbers(one) or name in ("hf-heuristic",)
    again = method(name, DRAFTERS).policy
    file = StateFile(
        tmp_path / "both.json", again, name=name, target="t", drafters=dict.fromkeys(DRAFTERS, "d")
    )
    assert file.load(restarts=False) and close(dump(again), both)
    known, merged, blank = taught(name, 3), method(name, DRAFTERS).policy, method(name, DRAFTERS).policy
    for policy in (merged, blank):
        dump(policy)
    combine(merged, [known, blank])
    assert close(dump(merged), dump(known)), "one that knows nothing changes nothing"


def numbers(path: Path) -> Any:
    return json.loads(path.read_text())["numbers"]


def test_what_does_not_belong_together_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = saved(tmp_path / "one.json", "ucb1", taught("ucb1", 1))
    other = saved(tmp_path / "other.json", "exp3spec?per_query=false", taught("exp3spec?per_query=false", 1))
    junk = tmp_path / "junk.json"
    junk.write_text("{}")
    out = tmp_path / "out.json"
    for files, said in (([one], "two"), ([one, other], "policy"), ([junk, one], "no state file")):
        with pytest.raises(UserError, match=said):
            merge(files, out)
    with pytest.raises(UserError, match=r"cannot read .*missing\.json: No such file"):
        merge([tmp_path / "missing.json", one], out)
    with pytest.raises(UserError, match=r"cannot read .*missing\.json: No such file"):
        merge([one, tmp_path / "missing.json"], out)
    with pytest.raises(
        UserError, match=r"junk\.json: it is damaged, or no state file; name files that draftwise"
    ):
        merge([one, junk], out)
    assert {path.name for path in tmp_path.glob("*.lock")} == {f"{path.name}.lock" for path in (one, other)}
    assert not out.exists()
    same = tmp_path / "sub" / ".." / one.name
    (tmp_path / "sub").mkdir()
    for twice in (one, same):
        assert main(["merge", str(one), str(twice), "--out", str(out)]) == 2
        assert "is named twice, and would count twice" in capsys.readouterr().err
    (copy := tmp_path / "copy.json").write_bytes(one.read_bytes())
    assert main(["merge", str(one), str(copy), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "ucb1"
    assert main(["merge", str(one), "--out", str(out)]) == 2
    assert "two" in capsys.readouterr().err


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    ("key", "value"),
    [("drafters", 5), ("drafters", None), ("drafters", {"ngram": 1}), ("policy", None), ("policy", "gone")],
)
def test_a_damaged_file_is_named(tmp_path: Path, key: str, value: object, sealed: bool) -> None:
    one = saved(tmp_path / "one.json", "ucb1", taught("ucb1", 1))
    body = json.loads(one.read_text()) | {key: value}
    if sealed:  # as if another program had written it
        body.pop("sha256")
        body["sha256"] = _seal(body)
    (bad := tmp_path / "bad.json").write_text(json.dumps(body))
    for files in ([bad, one], [one, bad]):
        with pytest.raises(UserError, match=r"bad\.json") as caught:
            merge(files, tmp_path / "out.json")
        assert "\n" not in str(caught.value)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return bool(a == b or a == pytest.approx(b, rel=1e-6, abs=1e-9))
