"""What was learned survives, as numbers and as a file, whatever crashes, damage and other processes do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from draftwise import UserError, method, registry
from draftwise.core.arms import Arm, Context
from draftwise.core.drafts import Signals
from draftwise.core.outcomes import Feedback, Outcome, RoundCost, Window
from draftwise.policies.adaptive import AdaEDL
from draftwise.policies.learners.fixed import Fixed
from draftwise.policies.learners.halving import SequentialHalving
from draftwise.policies.learners.linucb import LinUCB
from draftwise.policies.learners.thompson import GaussianThompson
from draftwise.policies.learners.ucb import UCB1, SlidingWindowUCB
from draftwise.state import file as statefile
from draftwise.state import learned as fields
from draftwise.state.file import StateFile, StateWarning, usable
from draftwise.state.learned import LEARNED, dump, load

ARMS = tuple(Arm(name, 5) for name in ("a", "b", "c", "d"))
CHANCES = (0.2, 0.7, 0.4, 0.5)


KEEPING = {"ucb1", "tapout-seq-ts", "tapout-token-ucb1", "hedgespec", "linucb", "adaedl", "hf-threshold"}


@dataclass(slots=True)
class Holder:
    """A policy of every shape that is saved: learners in a field, by position, by name and by arm."""

    one: Any = field(metadata=LEARNED)
    arms: tuple[Arm, ...] = ARMS
    lambdas: tuple[AdaEDL | None, ...] = (None,)
    by_position: list[Any] = field(default_factory=list, metadata=LEARNED)
    by_arm: Mapping[int, Any] = field(default_factory=dict, metadata=LEARNED)
    of_request: dict[int, Any] = field(default_factory=dict)
    new_learner: Callable[[int], Any] = UCB1


@dataclass(slots=True)
class Lazy:
    """A policy that builds its learner at the first choice."""

    arms: tuple[Arm, ...]
    new_learner: Callable[[int], Any]
    per_query: bool = False
    shared: Fixed | GaussianThompson | None = field(default=None, metadata=LEARNED)


@dataclass(slots=True)
class Numbers:
    """Every kind of number that may be learned."""

    whole: int = field(default=0, metadata=LEARNED)
    real: float = field(default=0.0, metadata=LEARNED)
    truth: bool = field(default=False, metadata=LEARNED)
    perhaps: float | None = field(default=None, metadata=LEARNED)
    many: list[float] = field(default_factory=list, metadata=LEARNED)
    pair: tuple[int, ...] = field(default=(0, 0), metadata=LEARNED)
    by_length: dict[int, list[float]] = field(default_factory=dict, metadata=LEARNED)
    each: list[dict[int, float]] = field(default_factory=list, metadata=LEARNED)
    rules: list[float] = field(default_factory=lambda: [0.6, 0.3], metadata=LEARNED)
    flight: int = field(default=0, metadata=LEARNED)
    option: int = 7


def through_json(numbers: Any) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not strict JSON")

    return json.loads(json.dumps(numbers, allow_nan=False), parse_constant=refuse)


def play(learner: Any, rng: Random, n: int) -> list[int]:
    """Play and teach n rounds; what was chosen."""
    chosen = []
    for _ in range(n):
        more = [[1.0, rng.random()]] if isinstance(learner, LinUCB) else []
        arm, chance = learner.choose(range(4), rng, *more)
        learner.update(arm, float(rng.random() < CHANCES[arm]), chance, *more)
        chosen.append(arm)
    return chosen


# -- numbers ---------------------------------------------------------------------------------------------


def test_learners_go_on_wherever_they_are_and_what_is_in_flight_is_no_state() -> None:
    """One that has lost arms, one that has grown, and one of a request."""

    def blank() -> Holder:
        return Holder(
            UCB1(4), by_position=[SequentialHalving(4), SlidingWindowUCB(4)], by_arm={3: LinUCB(4, 2)}
        )

    old, back = blank(), blank()
    learners = (old.one, *old.by_position, old.by_arm[3])
    for part in learners:
        play(part, Random(2), 60)
    old.of_request[5] = UCB1(4)
    load(back, through_json(dump(old)))
    old.of_request.clear()
    assert back == old and len(old.by_position[0].survivors) < 4
    for mine, other in zip((back.one, *back.by_position, back.by_arm[3]), learners, strict=True):
        assert play(mine, Random(7), 60) == play(other, Random(7), 60)
    assert back == old
    old.one.choose(range(4), Random(0))
    load(back, dump(old))
    assert back.one.flight == [0] * 4


FILED = ("disco", "router", "specdecpp")  # ask for a file
NAMES = [name for name in registry.names("policies") if name not in FILED]


def built(name: str) -> Any:
    """A policy of the catalogue; one that can keep what it learns from text to text does."""
    each = "per_query" in registry.options_of(registry.load("policies", name))
    return method(f"{name}?per_query=false" if each else name, ["zoo:general", "ngram", "suffix"]).policy


def decide(policy: Any, rng: Random, n: int) -> list[tuple[int, str, Any]]:
    """A policy's decisions in n rounds of two texts."""
    made = []
    for i in range(n):
        hints = {"zoo:general": 1.0, "ngram": 3.0 * rng.random(), "suffix": 0.0}
        decision = policy.choose(Context(request=i % 2, position=i, hints=hints), rng)
        longest = policy.arms[decision.arm].length
        accepted, signals = rng.randint(0, longest), Signals(0.6, 0.2, rng.random(), rng.random())
        reward, losses = rng.random(), tuple(rng.random() for _ in policy.arms)
        outcome = Outcome(
            decision.arm,
            accepted,
            longest,
            0.01,
            reward=reward,
            overlaps=(reward,) * longest,
            signals=(signals,) * longest,
            cost=RoundCost(0.002, 0.008, 1 + longest),
        )
        windows = (Window(1, 2, (1.0, 0.0), 7),)
        policy.learn(Feedback(i % 2, decision, (outcome,), losses, windows))
        made.append((decision.arm, repr(decision.propensity), decision.stops))
    policy.close(0)
    policy.close(1)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_of_the_catalogue_goes_on(name: str) -> None:
    old, new_one = built(name), built(name)
    blank = dump(new_one)
    decide(old, Random(5), 40)
    load(new_one, through_json(dump(old)))
    assert dump(new_one) == dump(old)
    assert decide(new_one, Random(6), 40) == decide(old, Random(6), 40)
    assert dump(new_one) == dump(old)
    learns = any(value is not None for value in blank.values())
    assert (dump(old) != blank) == learns
    assert learns or name not in KEEPING


def test_numbers_of_every_kind() -> None:
    odd = [nan, inf, -inf, -0.0, 1e-320, 0.1, 5.0]
    old = Numbers(
        3, -inf, True, 0.5, odd, (4, 5), {-2: [1.5], 10: []}, [{3: 0.5}], [0.1, 0.2], flight=4, option=9
    )
    back = Numbers()
    load(back, through_json(dump(old)))
    assert isnan(back.many[0])
    assert repr(back.many) == repr(odd)
    back.many = old.many
    assert back == Numbers(3, -inf, True, 0.5, odd, (4, 5), {-2: [1.5], 10: []}, [{3: 0.5}], [0.1, 0.2])


def test_a_learner_that_is_built_at_the_first_choice_is_built_to_be_restored() -> None:
    old, back = Lazy(ARMS, GaussianThompson), Lazy(ARMS, GaussianThompson)
    load(back, dump(old))
    assert back.shared == GaussianThompson(4)
    play(back.shared, Random(1), 20)
    load(old, dump(back))
    assert old.shared == back.shared
    each = dump(Lazy(ARMS, UCB1, per_query=True))
    assert each == {"shared": None}
    with pytest.raises(UserError, match=r"numbers\.shared"):
        load(Lazy(ARMS, UCB1, per_query=True), {"shared": 3})


SPOILT: list[tuple[str, Any]] = [
    ("whole", 1.5),
    ("whole", True),
    ("whole", "nan"),
    ("whole", 2**60),
    ("real", None),
    ("real", 1e200),
    ("real", nan),
    ("real", 10**400),
    ("truth", 1),
    ("perhaps", "x"),
    ("many", 1.0),
    ("many", [1.0, [2.0]]),
    ("pair", [1]),
    ("pair", [1, 2.5]),
    ("rules", [0.6]),
    ("by_length", []),
    ("by_length", {"x": []}),
    ("by_length", {"1": 1.0}),
    ("by_length", {"9" * 5000: []}),
    ("each", [{"1": "x"}]),
]


@pytest.mark.parametrize(("name", "value"), SPOILT, ids=lambda x: str(x)[:12])
def test_what_does_not_fit_is_refused_whole(name: str, value: Any) -> None:
    policy = Numbers()
    saved = dump(Numbers(5, 5.0, many=[1.0, 2.0], rules=[0.2, 0.1])) | {name: value}
    with pytest.raises(UserError, match=f"numbers.{name}"):
        load(policy, saved)
    assert policy == Numbers()


@pytest.mark.parametrize("survivors", [[], [4], [0, 0], [-1], [0, 1, 2, 3, 4], [0.0], ["0"]])
def test_survivors_are_arms(survivors: list[Any]) -> None:
    saved = dump(SequentialHalving(4)) | {"survivors": survivors}
    with pytest.raises(UserError, match=r"numbers\.survivors"):
        load(SequentialHalving(4), saved)


@pytest.mark.parametrize("saved", [None, [], 3, {}, {"one": None}, {"one": {}}])
def test_other_fields_are_refused(saved: Any) -> None:
    with pytest.raises(UserError, match="has not the fields"):
        load(Holder(UCB1(4)), saved)
    more = dump(Holder(UCB1(4))) | {"two": {}}
    with pytest.raises(UserError, match="numbers has not the fields"):
        load(Holder(UCB1(4)), more)
    with pytest.raises(UserError, match=r"numbers\.one\.pulls has 3 values in place of 4"):
        load(Holder(UCB1(4)), dump(Holder(UCB1(3))))


# -- the file --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Policy:
    """As much of a policy as a state file looks at."""

    arms: tuple[Arm, ...] = ARMS
    learner: UCB1 = field(default_factory=lambda: UCB1(4), metadata=LEARNED)
    reads_hints: bool = False

    choose = learn = close = None


MADE: dict[str, Any] = {"name": "ucb1", "target": "t1", "drafters": {"a": "a1", "b": "b1"}}


def state_file(path: Path, policy: Any = None, **other: Any) -> StateFile:
    own: Any = policy or Policy()
    return StateFile(path, own, **MADE | other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that was saved after 30 rounds."""
    file = state_file(tmp_path / "state.json")
    play(file.policy.learner, Random(3), 30)  # type: ignore[attr-defined]
    file.save()
    return file.path


def learning(path: Path) -> StateFile:
    """A file whose policy has learned more since it was loaded."""
    file = state_file(path)
    assert file.load()
    play(file.policy.learner, Random(4), 5)  # type: ignore[attr-defined]
    return file


Restored = tuple[bool, dict[str, Any], list[str]]


def restored(path: Path, **other: Any) -> Restored:
    """Load a file: whether it did, what the policy then knows, and the warnings."""
    return loaded(state_file(path, **other))


def loaded(file: StateFile) -> Restored:
    file.complaint = ""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        done = file.load()
    assert all(issubclass(w.category, StateWarning) for w in told)
    return done, dump(file.policy), [str(w.message) for w in told]


BLANK = dump(Policy())


def test_a_file_is_read_back(path: Path, tmp_path: Path) -> None:
    assert restored(tmp_path / "new.json") == (False, BLANK, []), "no file yet is no complaint"
    assert not (tmp_path / "new.json").exists()
    done, numbers, told = restored(path)
    assert (done, told) == (True, [])
    assert sum(numbers["learner"]["pulls"]) == 30.0
    saved = through_json(json.loads(path.read_text()))
    assert saved["numbers"] == numbers
    assert (saved["version"], saved["policy"], saved["arms"]) == (1, "ucb1", ["a:5", "b:5", "c:5", "d:5"])
    assert (saved["target"], saved["drafters"]) == ("t1", {"a": "a1", "b": "b1"})


@pytest.mark.parametrize("harm", ["cut", "0", "\xff"])
def test_a_file_that_was_cut_off_or_changed_anywhere_is_refused_and_left_alone(path: Path, harm: str) -> None:
    whole, file = path.read_bytes(), state_file(path)
    for at in range(0, len(whole), 5):
        damaged = whole[:at] + (b"" if harm == "cut" else harm.encode("latin-1") + whole[at + 1 :])
        if damaged != whole:
            path.write_bytes(damaged)
            done, numbers, told = loaded(file)
            assert (done, numbers, len(told)) == (False, BLANK, 1)
            assert str(path) in told[0] and path.read_bytes() == damaged


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100_000, "9" * 10_000, "NaN"])
def test_a_file_of_something_else_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    done, numbers, told = restored(path)
    assert (done, numbers) == (False, BLANK)
    assert "damaged, or no state file" in told[0] and "\n" not in told[0]


def forge(path: Path, **change: Any) -> None:
    """Change parts of a file and make it whole again, as another release or a person might."""
    body = json.loads(path.read_text()) | change
    body.pop("sha256")
    path.write_text(json.dumps(body | {"sha256": statefile._seal(body)}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2, and this release reads 1"),
        ({"policy": "exp3"}, "made with the policy 'exp3', not 'ucb1'"),
        ({"target": "t2"}, "made with another target"),
        ({"drafters": {"a": "a1", "b": "other"}}, "other drafters (b)"),
        ({"drafters": {"a": "a1", "c": "c1"}}, "other drafters (b, c)"),
        ({"drafters": 3}, "made with the drafters 3"),
        ({"arms": ["a:5", "b:5", "c:5", "e:5"]}, "other arms (e:5 in place of d:5)"),
        ({"arms": ["b:5", "a:5", "c:5", "d:5"]}, "the arms in another order"),
        ({"arms": None}, "made with the arms None"),
        ({"numbers": {"learner": {"pulls": [1.0], "sums": [1.0]}}}, "numbers.learner.pulls has 1 values"),
        ({"numbers": {"learner": {"pulls": [nan] * 4, "sums": [1.0] * 4}}}, "damaged"),
        ({"numbers": {"learner": {"pulls": [1e300] * 4, "sums": [1.0] * 4}}}, "1e+300"),
        ({"more": 1}, "damaged"),
    ],
    ids=str,
)
def test_a_file_of_something_else_says_what_differs(path: Path, change: dict[str, Any], said: str) -> None:
    forge(path, **change)
    before = path.read_bytes()
    done, numbers, told = restored(path)
    assert (done, numbers, len(told)) == (False, BLANK, 1)
    assert told[0].startswith(f"state file {path} is not used: ")
    assert said in told[0]
    assert "remove it or name another" in told[0]
    with pytest.raises(UserError, match="is not used"):
        state_file(path).save()
    assert path.read_bytes() == before


def test_a_refused_file_is_complained_of_once_and_replaced_when_it_is_gone(path: Path) -> None:
    file = state_file(path, target="t2")
    with pytest.warns(StateWarning, match="another target") as told:
        file.load()
        file.keep()
        file.keep()
    assert len(told) == 1
    path.unlink()
    file.keep()
    assert restored(path, target="t2")[0]


def test_numbers_that_could_not_be_read_back_are_not_written(path: Path) -> None:
    policy, before = Policy(), path.read_bytes()
    file = state_file(path, policy)
    policy.learner.sums[0] = 1e200
    with pytest.raises(UserError, match=r"is not written: numbers\.learner\.sums has 1e\+200"):
        file.save()
    assert path.read_bytes() == before


# -- crashes, other processes, and paths -----------------------------------------------------------------


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failed_save_leaves_the_old_file_whole(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    file = learning(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            file.save()
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]
    file.save()
    assert restored(path)[1] == dump(file.policy)


SAVE = """
import os, signal, sys
from random import Random
from draftwise.policies.learners.ucb import UCB1
from draftwise.state.file import StateFile
from tests.state.test_numbers import MADE, Policy
policy = Policy()
file = StateFile(sys.argv[1], policy, **MADE)
"""
KILLED = "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\nfile.save()"
OFTEN = """
for i in range(25):
    policy.learner.sums = [float(sys.argv[2])] * 4
    file.save()
"""


def started(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", SAVE + code, *arguments], cwd=root)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_a_process_killed_while_saving_leaves_the_old_file_whole_and_no_lock(path: Path) -> None:
    before = path.read_bytes()
    with started(KILLED, str(path)) as running:
        assert running.wait() == -signal.SIGKILL
    assert path.read_bytes() == before
    assert restored(path)[0]
    file = learning(path)
    file.save()
    assert restored(path)[1] == dump(file.policy)
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]


def test_two_processes_on_one_file_never_show_half_of_it(path: Path) -> None:
    file, seen = state_file(path), set()
    with started(OFTEN, str(path), "1") as one, started(OFTEN, str(path), "2") as two:
        while one.poll() is None or two.poll() is None:
            saved = json.loads(path.read_bytes())  # without the lock, as any reader may
            assert saved.pop("sha256") == statefile._seal(saved)
            assert file.load()
            seen.add(file.policy.learner.sums[0])  # type: ignore[attr-defined]
    assert (one.returncode, two.returncode) == (0, 0)
    assert seen & {1.0, 2.0}
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]


def test_a_lock_that_is_never_given_back_is_an_error_with_a_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = state_file(path)
    monkeypatch.setattr(statefile, "WAIT", 0.01)
    with FileLock(f"{path}.lock"), pytest.raises(UserError, match=r"cannot be written: .*lock"):
        file.save()


def test_a_path_that_cannot_hold_a_file_is_refused(path: Path) -> None:
    for wrong, said in [
        (path.parent, "no plain file"),
        (path.parent / "nowhere" / "state.json", "no folder"),
        (path / "state.json", "no folder"),
        (Path(os.devnull), "no plain file"),
        (Path("~no-such-user/state.json"), "no user"),
    ]:
        with pytest.raises(UserError, match=said) as refused:
            usable(wrong)
        assert str(wrong) in str(refused.value)
    with pytest.raises(UserError, match=r"a.x00b' has a null byte"):
        usable("a\0b")
    assert not (path.parent / "nowhere").exists()


@pytest.mark.parametrize("wrong", ["touch", "open"])
def test_a_path_without_the_right_to_write_is_refused(
    path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, wrong, refuse)
    with pytest.raises(
        UserError, match=r"state\.json cannot be written: Permission denied; name another place"
    ):
        usable(path)


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_permissions_and_links_stay(path: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        state_file(tmp_path / "new.json").save()
    finally:
        os.umask(before)
    assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    file = learning(link)
    file.save()
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    assert restored(path)[1] == dump(file.policy)


@dataclass
class Counting:
    """A plug-in's policy whose numbers come from NumPy."""

    arms: tuple[Arm, ...] = (Arm("none", 0),)
    mean: Any = field(default=0.0, metadata=LEARNED)


Counting.__annotations__["mean"] = "float"


def test_what_a_plug_in_holds_or_annotates_costs_no_text(tmp_path: Path) -> None:
    assert dump(Counting(mean=np.float32(2.0))) == {"mean": 2.0}
    assert type(dump(Counting(mean=np.int64(3)))["mean"]) is int
    made: Any = Counting()
    file = StateFile(tmp_path / "state.json", made, name="counting", target="t", drafters={})
    made.mean = {1, 2}
    with pytest.warns(StateWarning, match="is learned, and no number"):
        file.keep()
    made.mean = 1.0
    vague = (
        ("Nowhere", "a field whose type cannot be found"),
        ("list", r"mean is declared as list, without"),
    )
    try:
        for kind, said in vague:
            Counting.__annotations__["mean"] = kind
            fields._hints.cache_clear()
            with pytest.warns(StateWarning, match=said):
                file.keep()
    finally:
        Counting.__annotations__["mean"] = "float"
        fields._hints.cache_clear()
    file.keep()
    assert file.load()
