"""The classifiers of learned stopping: values worked out by hand, their files, and which are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftwise.core.drafts import Signals
from draftwise.errors import UserError
from draftwise.policies.classifiers.stopping import Disco, Scorer, SpecDecPlus, features, load, save


def f32(values: Any) -> Any:
    return np.array(values, dtype=np.float32)


def seen(*, top: tuple[float, ...] = (), place: int = 0, hidden: Any = None) -> Signals:
    return Signals(0.6, 0.3, 0.0, 0.6, place, top, hidden)


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + exp(-z))


def disco(rng: Any = None, width: int = 3) -> Disco:
    rng = rng or np.random.default_rng(0)
    parts = [f32(rng.normal(size=shape)) for shape in ((width, 12), width, (1, width), 1)]
    return Disco(parts[0], parts[1], parts[2], parts[3], drafter="abc")


def specdecpp(blocks: int = 2, *, repeat: int = 1, width: int = 4) -> SpecDecPlus:
    rng = np.random.default_rng(1)
    own = tuple((f32(rng.normal(size=(width, width))), f32(rng.normal(size=width))) for _ in range(blocks))
    return SpecDecPlus(own, f32(rng.normal(size=(2, width))), f32(rng.normal(size=2)), repeat=repeat)


# -- values --------------------------------------------------------------------------------------------


def test_features_are_ten_probabilities_their_entropy_and_the_place() -> None:
    x = features(seen(top=(0.5, 0.25, 0.25), place=7))
    assert x.tolist() == pytest.approx([0.5, 0.25, 0.25, *[0.0] * 7, 1.5 * log(2), 7.0])
    full = tuple(k / 55 for k in range(10, 0, -1))
    assert features(seen(top=full)).tolist() == pytest.approx([*full, -sum(p * log(p) for p in full), 0.0])
    two = [0.6, 0.3, *[0.0] * 8, -0.6 * log(0.6) - 0.3 * log(0.3), 2.0]
    assert features(seen(place=2)).tolist() == pytest.approx(two), "a drafter that knows two probabilities"


def test_disco_by_hand() -> None:
    # One unit sees the first probability and the place, the other the entropy, which the ReLU cuts off.
    weight = np.zeros((2, 12))
    weight[0, 0], weight[0, 11], weight[1, 10] = 4.0, 0.5, -1.0
    made = Disco(f32(weight), f32([-1.0, 0.5]), f32([[0.5, 9.0]]), f32([-0.75]))
    now = seen(top=(0.5, 0.5), place=3)  # 4 * 0.5 + 0.5 * 3 - 1 = 2.5; -ln 2 + 0.5 < 0
    assert made.score(now) == pytest.approx(sigmoid(0.5 * 2.5 - 0.75))
    sure = seen(top=(1.0,), place=0)  # 4 - 1 = 3; entropy 0, so 0.5 passes
    assert made.score(sure) == pytest.approx(sigmoid(0.5 * 3.0 + 9.0 * 0.5 - 0.75))


def test_specdecpp_by_hand() -> None:
    # One block on (1, 2): W x + b = (2, -1), so x + SiLU = (1 + 2 s(2), 2 - s(-1)).
    block = (f32([[0.0, 1.0], [-1.0, 0.0]]), f32([0.0, 0.0]))
    made = SpecDecPlus((block,), f32([[1.0, 0.0], [0.0, 2.0]]), f32([0.25, 0.0]))
    a, b = 1 + 2 * sigmoid(2), 2 - sigmoid(-1)
    want = exp(2 * b) / (exp(2 * b) + exp(a + 0.25))
    assert made.score(seen(hidden=f32([1.0, 2.0]))) == pytest.approx(want, rel=1e-6)


def test_a_shared_block_is_gone_through_again_with_the_same_weights() -> None:
    w, b = f32([[0.5, 0.0], [0.0, -1.0]]), f32([0.5, 1.0])
    out = f32([[0.0, 0.0], [1.0, 1.0]]), f32([0.0, 0.0])
    x, y = 1.0, 2.0
    for _ in range(3):
        u, v = 0.5 * x + 0.5, 1.0 - y
        x, y = x + u * sigmoid(u), y + v * sigmoid(v)
    shared, separate = SpecDecPlus(((w, b),), *out, repeat=3), SpecDecPlus(((w, b),) * 3, *out)
    assert shared.layers == separate.layers == 3
    for made in (shared, separate):
        assert made.score(seen(hidden=f32([1.0, 2.0]))) == pytest.approx(sigmoid(x + y), rel=1e-6)
    linear = SpecDecPlus((), f32([[1.0, 0.0], [0.0, 1.0]]), f32([0.0, 0.5]))
    assert linear.score(seen(hidden=f32([0.25, 1.0]))) == pytest.approx(sigmoid(1.25)), "without blocks"


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_chance_stays_in_bounds_whatever_the_weights(sign: float) -> None:
    huge = float(np.finfo(np.float32).max)
    made = Disco(f32(np.full((1, 12), huge)), f32([huge]), f32([[sign * huge]]), f32([0.0]))
    assert made.score(seen(top=(1.0,), place=9)) == (sign > 0)
    state = np.full(2, 1e30)
    for out in ([[huge, huge], [-huge, -huge]], [[-huge, huge], [huge, -huge]]):
        head = SpecDecPlus(
            ((f32(np.full((2, 2), sign * huge)), f32([0, 0])),), f32(out), f32([0, 0]), repeat=9
        )
        assert 0.0 <= head.score(seen(hidden=state)) <= 1.0
    assert specdecpp().score(seen(hidden=np.full(4, np.nan))) == 0.0, "what is no number is a reason to stop"


def test_a_state_that_is_not_there_or_of_another_width_is_named() -> None:
    with pytest.raises(UserError, match="has none: choose a model"):
        specdecpp().score(seen())
    with pytest.raises(UserError, match="states of 4 numbers and the drafter's have 5"):
        specdecpp().score(seen(hidden=np.zeros(5)))


# -- files -------------------------------------------------------------------------------------------------

MADE: dict[str, Callable[[], Scorer]] = {
    "disco": disco,
    "specdecpp": specdecpp,
    "specdecpp shared": lambda: specdecpp(1, repeat=3),
    "specdecpp linear": lambda: specdecpp(0),
}


@pytest.mark.parametrize("which", MADE)
def test_a_saved_classifier_is_the_same_one(tmp_path: Path, which: str) -> None:
    made, path = MADE[which](), tmp_path / "c.safetensors"
    save(made, path)
    read = load(path, made.kind)
    assert type(read) is type(made) and read.drafter == made.drafter
    assert (read.layers, read.width) == (made.layers, made.width)
    now = seen(top=(0.4, 0.3, 0.1), place=5, hidden=f32([0.1, -0.2, 0.3, 0.4]))
    assert read.score(now) == made.score(now)
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"], "nothing is left beside it"


def test_the_file_is_what_the_module_says(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save(specdecpp(1, repeat=3), path)
    assert {name: x.shape for name, x in load_file(path).items()} == {
        "blocks.0.weight": (4, 4),
        "blocks.0.bias": (4,),
        "out.weight": (2, 4),
        "out.bias": (2,),
    }
    assert metadata(path) == {
        "format": "draftwise-scorer",
        "version": "1",
        "kind": "specdecpp",
        "layers": "3",
        "width": "4",
        "shared": "true",
        "drafter": "",
    }


def test_half_precision_is_read(tmp_path: Path) -> None:
    made, path = disco(), tmp_path / "c.safetensors"
    halves = {name: x.astype(np.float16) for name, x in made.tensors().items()}
    save(made, path)
    save_file(halves, path, metadata=metadata(path))
    assert load(path, "disco").score(seen()) == pytest.approx(made.score(seen()), abs=1e-2)


def metadata(path: Path) -> dict[str, str]:
    raw = path.read_bytes()
    found: dict[str, str] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    return found


Change = Callable[[dict[str, Any], dict[str, str]], Any]
WRONG: dict[str, tuple[str, Change, str]] = {
    "another format": ("disco", lambda t, m: m.update(format="x"), "says x 1 disco"),
    "no metadata": ("disco", lambda t, m: m.clear(), "says nothing"),
    "a later version": ("disco", lambda t, m: m.update(version="2"), "says draftwise-scorer 2"),
    "another kind": ("disco", lambda t, m: m.update(kind="specdecpp"), "specdecpp of itself"),
    "no depth": ("specdecpp", lambda t, m: m.pop("layers"), "no 'layers'"),
    "too deep": ("specdecpp", lambda t, m: m.update(layers="65"), "layers=65"),
    "negative": ("specdecpp", lambda t, m: m.update(layers="-1"), "layers=-1"),
    "not said if shared": ("specdecpp", lambda t, m: m.pop("shared"), "no 'shared'"),
    "a tensor missing": ("disco", lambda t, m: t.pop("out.bias"), "no 'out.bias'"),
    "a block missing": ("specdecpp", lambda t, m: t.pop("blocks.1.bias"), "no 'blocks.1.bias'"),
    "a scalar": ("specdecpp", lambda t, m: t.update({"out.weight": f32(1.0)}), "out.weight|blocks.0.weight"),
    "one output": ("specdecpp", lambda t, m: t.update({"out.weight": f32(np.ones((1, 4)))}), "out.weight"),
    "NaN": ("disco", lambda t, m: t.update({"out.bias": f32([np.nan])}), "out.bias .* not a finite"),
    "infinite": ("specdecpp", lambda t, m: t.update({"blocks.0.bias": f32([np.inf] * 4)}), "not a finite"),
    "too large": ("disco", lambda t, m: t.update({"out.bias": np.array([1e300])}), "not a finite"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    kind, change, said = WRONG[what]
    path = tmp_path / "c.safetensors"
    save(MADE[kind](), path)
    tensors, about = load_file(path), metadata(path)
    change(tensors, about)
    save_file(tensors, path, metadata=about)
    with pytest.raises(UserError, match=said) as caught:
        load(path, kind)
    text = str(caught.value)
    assert str(path) in text and f"give a file of draftwise-scorer 1, kind {kind}" in text
    assert "\n" not in text


def test_a_damaged_file_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save(disco(), path)
    whole = path.read_bytes()
    for cut in (0, 4, 8, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="cannot use the classifier"):
            load(path, "disco")
    path.write_bytes(b"\xff" * 200)
    with pytest.raises(UserError, match="cannot use the classifier"):
        load(path, "disco")
    for name in ("", "nothing.safetensors"):
        with pytest.raises(UserError, match="there is no such file"):
            load(tmp_path / name, "disco")
