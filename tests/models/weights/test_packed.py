"""Weights are packed where that is faster: kernels and clock are made up, and decide both ways."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models import verdicts
from draftwise.models.native import kernels
from draftwise.models.threads import THREADS
from draftwise.models.weights import packed, timing
from draftwise.models.weights.layouts import PANELS, TURNED, PackedLinear, TurnedLinear
from draftwise.models.weights.packed import arrange, choose_precision, layouts, pack_layers


class Bench:
    """A clock that only kernels move, each by what it costs at a width; `noise` is added to every pass."""

    def __init__(self, plain: dict[int, float], packed: dict[int, float], noise: list[float]) -> None:
        self.now, self.costs, self.noise, self.order = 0.0, (plain, packed), noise, list[str]()

    def kernel(self, which: int) -> timing.Pass:
        def run(width: int) -> None:
            self.order.append(["plain", "packed"][which])
            self.now += self.costs[which][width] + self.noise[len(self.order) % len(self.noise)]

        return run

    def measure(self, budget: float = 1e9, limit: float = inf) -> Any:
        return self.run(timing.measure(self.kernel(0), self.kernel(1), budget=budget, limit=limit))

    def run(self, steps: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "perf_counter", lambda: self.now)
            return verdicts.finish(steps)


PLAIN = {1: 10.0, 5: 20.0, 9: 30.0, 17: 40.0}
QUIET = [0.0]


def times(factor: float, **others: float) -> dict[int, float]:
    return {width: factor * cost for width, cost in PLAIN.items()}


def test_the_faster_layout_is_taken_and_kept() -> None:
    found = Bench(PLAIN, times(0.5), QUIET).measure()
    assert found.pays and found.lasting and found.ratios == (0.5, 0.5, 0.5, 0.5)
    assert found.rounds == found.wins == timing.FEWEST and found.rounded == [0.5] * 4


def test_the_slower_one_is_not_which_is_just_as_clear() -> None:
    """As on a machine where a pass took 17.8 ms packed and 14.5 plain, and 23.1 and 22.3 at nine tokens."""
    found = Bench(PLAIN, {1: 12.3, 5: 21.0, 9: 31.0, 17: 41.0}, QUIET).measure()
    assert not found.pays and found.lasting and found.rounds == timing.FEWEST


def test_what_one_width_loses_the_others_do_not_make_up_for() -> None:
    found = Bench(PLAIN, {1: 12.6, 5: 10.0, 9: 10.0, 17: 10.0}, QUIET).measure()
    assert found.lasting and not found.pays
    found = Bench(PLAIN, {1: 12.4, 5: 10.0, 9: 10.0, 17: 10.0}, QUIET).measure()
    assert found.pays  # drafts gain more than plain decoding loses


def test_a_draw_ends_with_the_time_and_is_kept() -> None:
    noise = [0.0, 0.9, 0.3, 0.7, 0.1, 0.8, 0.5]
    found = Bench(PLAIN, times(1.0), noise).measure(budget=8000)
    assert not found.sure and found.lasting
    assert 30 < found.rounds < 60 and abs(2 * found.wins - found.rounds) < 10


def test_time_is_up_on_the_first_round_of_something_huge() -> None:
    found = Bench(PLAIN, times(0.5), QUIET).measure(budget=1.0)
    assert found.rounds == 1 and not found.lasting and found.pays, "the best guess there is"
    found = Bench(PLAIN, {1: 10.1, 5: 10.0, 9: 10.0, 17: 10.0}, QUIET).measure(budget=1.0)
    assert not found.pays, "a guess must hold at every width"
    bench = Bench(PLAIN, times(0.5), QUIET)
    assert bench.measure(limit=100.0) is None and len(bench.order) == 2, "not even one round"
    assert bench.measure(limit=200.0).pays


def test_on_a_busy_machine_a_clear_answer_serves_once() -> None:
    """Others take the cores by turns: the winner is as plain as before, and found out again next time."""
    found = Bench(PLAIN, times(0.3), [0.0, 5.0, 60.0, 1.0, 33.0, 90.0, 2.0, 70.0, 9.0]).measure()
    assert found.pays and not found.steady and not found.lasting


@pytest.mark.parametrize("factor, fine", [(1.2, True), (1.3, False)])
def test_a_layout_that_reads_prompts_much_slower_is_not_taken(
    factor: float, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench({timing.PROMPT: 100.0}, {timing.PROMPT: 100.0 * factor}, [0.0, 40.0, 0.0, 0.0])
    monkeypatch.setattr(timing, "perf_counter", lambda: bench.now)
    assert timing.keeps_up(bench.kernel(0), bench.kernel(1)) == fine


def test_layouts_take_turns_and_other_memory_is_read_before_each_timed_pass() -> None:
    """What is timed again and again is in the cache, where a layer of a model is not."""
    bench = Bench(PLAIN, times(0.5), QUIET)

    def others() -> None:
        bench.order.append("others")
        bench.now += 1e9

    found = bench.run(timing.measure(bench.kernel(0), bench.kernel(1), before=others, budget=1e10))
    assert bench.order[:8] == ["plain", "packed"] * 4  # compiled and allocated, outside the clock
    assert bench.order[8:24] == ["others", "plain", "others", "packed"] * 4
    assert bench.order[24:28] == ["others", "packed", "others", "plain"]
    assert found is not None and found.ratios == (0.5,) * 4


def test_small_layers_have_our_layout_or_none() -> None:
    ours = tuple(name for name in NAMES if name == PANELS)
    small, smaller = LARGE[:, : timing.SMALLEST // 8], LARGE[:, : timing.SMALLEST // 8 - 1]
    assert timing.possible(small) == timing.possible(small, shared=True, copied=True) == ours
    assert timing.possible(smaller) == timing.possible(small, shared=True) == ()


def test_another_machine_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    one = verdicts.processor("torch 2.13", "AVX512", 2)
    assert one == verdicts.processor("torch 2.13", "AVX512", 2)
    others = ("torch 2.12", "AVX512", 2), ("torch 2.13", "AVX2", 2), ("torch 2.13", "AVX512", 4)
    assert one not in {verdicts.processor(*other) for other in others}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert one != verdicts.processor("torch 2.13", "AVX512", 2)


# -- models -----------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Any]]:
    """Makes every timing come out as told, in a fresh process with a cache of its own; returns who asked."""

    def make(*, pays: bool = True, steady: bool = True, rounds: int = 8) -> list[Any]:
        seen: list[Any] = []

        def measure(plain: timing.Pass, packed: timing.Pass, **_: Any) -> Iterator[None]:
            for width in timing.WIDTHS:
                plain(width), packed(width)
                yield
            seen.append(plain)
            wins, ratio = (rounds, 0.5) if pays else (0, 2.0)
            return timing.Timing(rounds, wins, (ratio,) * 4, steady)  # type: ignore[return-value]

        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(timing, "DECIDED", {})
        monkeypatch.setattr(timing, "fastest", FASTEST)
        monkeypatch.setattr(timing, "faster_in_half", FASTER_IN_HALF)
        monkeypatch.setattr(timing, "measure", measure)
        monkeypatch.setattr(timing, "keeps_up", lambda plain, packed: True)
        return seen

    return make


FASTEST, FASTER_IN_HALF = timing.fastest, timing.faster_in_half  # before the tests' own stand in for them


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    alike = [nn.Linear(400, 400, bias=False) for _ in range(3)]
    return nn.Sequential(*alike, nn.Linear(400, 400), nn.Linear(400, 20))


def count(model: nn.Module) -> int:
    return sum(isinstance(m, PackedLinear) for m in model.modules())


@pytest.mark.parametrize("pays", [True, False])
def test_a_head_is_in_half_precision_where_that_is_faster(asked: Any, tmp_path: Path, pays: bool) -> None:
    """The answer is saved; a head that is not in float32 stays as it is, and nothing is timed."""
    seen = asked(pays=pays)
    wanted = torch.bfloat16 if pays else torch.float32
    assert {p.dtype for p in choose_precision(layers()).parameters()} == {wanted}
    saved = json.loads((tmp_path / "draftwise" / "packing.json").read_text())
    (answer,) = [one["layout"] for key, one in saved.items() if key.endswith("bfloat16 at 1 2 4")]
    assert answer == str(wanted).removeprefix("torch.")
    timed = len(seen)
    timing.DECIDED.clear()  # the next process
    assert choose_precision(layers())[0].weight.dtype == wanted and len(seen) == timed
    assert choose_precision(layers().double())[0].weight.dtype == torch.float64 and len(seen) == timed


@pytest.mark.parametrize("widths", [timing.WIDTHS, timing.DRAFTING])
def test_a_head_need_not_keep_up_at_a_prompt(
    asked: Any, monkeypatch: pytest.MonkeyPatch, widths: tuple[int, ...]
) -> None:
    asked()
    monkeypatch.setattr(timing, "keeps_up", lambda plain, packed: False)
    model = layers()
    arrange(model, "auto", widths=widths)
    assert count(model) == (4 if widths == timing.DRAFTING else 0)


def test_without_time_for_a_trial_our_kernel_decides(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    monkeypatch.setenv("DRAFTWISE_TRIALS", "off")
    has_kernel = kernels.linear_kernel(torch.bfloat16) is not None
    assert (choose_precision(layers())[0].weight.dtype == torch.bfloat16) == has_kernel
    timing.DECIDED.clear()
    monkeypatch.setattr(kernels, "linear_kernel", lambda *dtypes: None)
    assert choose_precision(layers())[0].weight.dtype == torch.float32


LARGE = torch.rand(1, 1 << 17, generator=torch.Generator().manual_seed(0))  # needs all bits of float32
NAMES = list(timing.possible(LARGE))  # what this build of PyTorch can pack


@pytest.mark.parametrize("pays", [True, False])
def test_each_shape_is_timed_once_and_the_answer_kept(asked: Any, tmp_path: Path, pays: bool) -> None:
    seen = asked(pays=pays)
    model, before = layers(), torch.get_rng_state()
    arrange(model, "auto")
    assert torch.equal(torch.get_rng_state(), before)
    timings = 2 * len(NAMES)  # of 400 x 400, with a bias and without
    assert len(seen) == timings
    assert count(model) == (4 if pays else 0)
    wanted = f"4 of 4 linear layers packed ({NAMES[-1]} 4)" if pays else NONE
    assert layouts({"target": Part(model)}) == {"target": wanted}
    kept = json.loads((tmp_path / "draftwise" / "packing.json").read_text())
    assert [value["layout"] for value in kept.values()] == [NAMES[-1] if pays else "rows"] * 2
    assert all(name in key for key in kept for name in ("float32 400 x 400", *NAMES))
    arrange(layers(), "auto")
    assert len(seen) == timings, "in this process"
    seen = asked(pays=not pays)
    again = layers()
    arrange(again, "auto")
    assert seen == [] and count(again) == count(model), "in the next one"


NONE = "0 of 4 linear layers packed"


class Part:
    """A drafter with a module."""

    def __init__(self, module: Any) -> None:
        self.module = module


@pytest.mark.parametrize("told", [{"steady": False}, {"rounds": 3, "pays": False}])
def test_an_unclear_answer_is_kept_and_corrected_once_the_machine_is_quiet(
    asked: Any, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    timings, packed = 2 * len(NAMES), 4 if "steady" in told else 0

    def started(busy: float, **told: Any) -> tuple[int, int]:
        """How many timings a start made, and the layers that it packed."""
        seen, model = asked(**told), layers()
        monkeypatch.setattr(THREADS, "others", busy)
        arrange(model, "auto")
        arrange(layers(), "auto")  # the same model has the same layout twice in a process
        return len(seen), count(model)

    assert started(2.0, **told) == (timings, packed)
    assert started(2.0, pays=not packed) == (0, packed), "a busy machine would tell nothing new"
    assert started(0.0, pays=not packed) == (timings, 4 - packed)
    assert started(0.0, **told) == (0, 4 - packed), "a clear answer stays"


def test_an_answer_that_stays_unclear_is_asked_a_few_times_only(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = []
    for _ in range(5):
        seen = asked(steady=False)
        monkeypatch.setattr(THREADS, "others", 0.0)
        arrange(layers(), "auto")
        timings.append(len(seen) // len(NAMES))
    assert timings == [2, 2, 2, 0, 0]


def test_trials_of_a_start_end_with_their_time(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest layers are timed first; the others have the same layout, and their turn next time."""
    seen, wide = asked(), nn.Linear(400, 1600, bias=False)
    now = verdicts.Trials(left=1e-9)
    monkeypatch.setattr(verdicts, "Trials", lambda mode: now)
    model = nn.Sequential(*layers(), wide)
    with verdicts.start():
        arrange(model, "auto")
    assert len(seen) == len(NAMES) and count(model) == 5 and now.left < 0
    (key,) = json.loads(verdicts.place("packing").read_text())
    assert "float32 1600 x 400" in key


@pytest.mark.parametrize("mode, timings", [("off", 0), ("auto", 0), ("all", 2)])
def test_trials_can_be_left_out_or_repeated(asked: Any, mode: str, timings: int) -> None:
    asked(pays=False)
    arrange(layers(), "auto")
    seen, model = asked(), layers()
    with verdicts.start(mode):
        arrange(model, "auto")
    assert len(seen) == timings * len(NAMES) and count(model) == (4 if timings else 0)
    with pytest.raises(UserError, match="choose from auto, off, all"), verdicts.start("never"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 3}', '{"KEY": {"layout": "no such"}}'])
def test_a_damaged_file_is_measured_over(asked: Any, tmp_path: Path, text: str) -> None:
    asked()
    arrange(layers(), "auto")
    file = tmp_path / "draftwise" / "packing.json"
    keys = list(json.loads(file.read_text()))
    file.write_text(text.replace("KEY", keys[0]))
    seen = asked()
    arrange(layers(), "auto")
    assert len(seen) == 2 * len(NAMES)
    assert all(value["layout"] == NAMES[-1] for value in json.loads(file.read_text()).values())


@pytest.mark.parametrize("bias", [False, True])
def test_of_a_huge_layer_some_outputs_are_timed(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the output layer of a model with 150,000 tokens: its passes would use up the time for timing."""
    layer = nn.Linear(16, 100, bias=bias)
    assert timing._part(layer) is layer
    monkeypatch.setattr(timing, "MOST", 40 * 16 * 4)
    part, x = timing._part(layer), torch.rand(1, 3, 16)
    assert torch.equal(part(x), layer(x)[..., :40])
    seen = set[tuple[int, ...]]()

    def stored(one: nn.Linear, layout: str) -> nn.Module:
        seen.add(tuple(one.weight.shape))
        return one

    monkeypatch.setattr(timing, "_stored", stored)
    timing._timed([layer, layer], ("columns",), "huge")
    assert seen == {(40, 16)}


def test_forced_and_forbidden_ask_no_clock(asked: Any) -> None:
    seen = asked(pays=False)
    for pack, wanted in ((True, 4), (False, 0)):
        model = layers()
        arrange(model, pack)
        assert count(model) == wanted
    assert seen == []
    with pytest.raises(UserError, match=r"pack='always': choose from 'auto', True and False"):
        arrange(layers(), "always")
    with pytest.raises(UserError, match=r"pack='always'"):  # before anything is loaded
        Decoder.from_pretrained("no/such-model", pack="always")


@pytest.mark.parametrize("layout", [*NAMES, TURNED])
@pytest.mark.parametrize("bias", [False, True])
def test_every_layout_multiplies(layout: str, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 500, bias=bias))
    for shape in ((400,), (1, 400), (1, 1, 400), (2, 3, 400), (1, 17, 400), (40, 400), (0, 400)):
        x = torch.randn(shape)
        wanted = model(x)
        again = nn.Sequential(nn.Linear(400, 500, bias=bias))
        again.load_state_dict(model.state_dict())
        pack_layers(again, lambda layers, names: layout)
        assert isinstance(again[0], TurnedLinear if layout == TURNED else PackedLinear)
        found = again(x)
        assert found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5)
        assert found.is_contiguous()


@pytest.mark.parametrize("first", [0, 2])
def test_greedy_text_is_the_plain_models_in_every_layout(first: int, plain_model: Any) -> None:
    """Shapes have layouts in turn; a good drafter and one that is mostly wrong make passes of many widths."""
    from draftwise.models.load import load_model, load_tokenizer

    model, tokenizer = load_model("zoo:target"), load_tokenizer("zoo:target")
    team = ["zoo:general", "ngram"]
    places = itertools.count(first)

    def choose(layers: Any, names: Any) -> str:
        return TURNED if first and TURNED in names else str(names[next(places) % len(names)])

    used = pack_layers(model, choose)
    assert len(used) > 2 and (TURNED in used) is bool(first)
    ids = list(tokenizer("Once there was a machine that")["input_ids"])
    written = plain_model.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)
    wanted = written[0, len(ids) :].tolist()
    for policy in ("static-4?drafter=zoo:general", "static-16?drafter=ngram"):
        decoder = Decoder.from_pretrained(model, tokenizer=tokenizer, drafters=team, policy=policy)
        assert list(decoder.generate(ids, max_new_tokens=32).token_ids) == wanted


def test_a_tied_weight_is_stored_twice_if_it_is_small_and_a_foreign_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedding, head = nn.Embedding(400, 400), nn.Linear(400, 400, bias=False)
    head.weight = embedding.weight
    assert timing.possible(LARGE.double()) == timing.possible(LARGE.half(), shared=True) == ()
    both = (TURNED, *NAMES)
    for more, size, wanted in ((1, 0, (TURNED,)), (3, 0, both), (1, embedding.weight.nbytes, both)):
        monkeypatch.setattr(packed, "COPIED", size)
        model = nn.Sequential(
            embedding, head, nn.Linear(400, 400).half(), *(nn.Linear(400, 400) for _ in range(more))
        )
        asked: dict[Any, int] = {}
        model[1] = nn.Linear(400, 400, bias=False)
        model[1].weight = embedding.weight

        def choose(layers: Any, names: Any, asked: dict[Any, int] = asked) -> str:
            asked[tuple(names)] = len(layers)
            return str(names[-1])

        assert pack_layers(model, choose).total() == 1 + more
        assert asked == {wanted: 1, tuple(NAMES): more}
        assert isinstance(model[1], PackedLinear if wanted == both else TurnedLinear)
        assert model[0].weight is embedding.weight and len(embedding.weight) == 400
        assert not pack_layers(model, choose), "nothing is left"


def test_a_decoder_says_what_was_packed(asked: Any) -> None:
    asked()
    for pack, wanted in (("auto", "49 of 49"), (False, "0 of 85")):
        decoder = Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram"], pack=pack)
        assert decoder.packed["target"].startswith(f"{wanted} linear layers packed")
        assert set(decoder.packed) == {"target", "zoo:general"}


def test_verdicts_of_other_keys_stay_and_the_oldest_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert verdicts.load("x", "a") is None
    for i in range(verdicts.MOST + 3):
        verdicts.keep("x", str(i), [i])
    assert verdicts.load("x", "2") is None and verdicts.load("x", "3") == [3]
    verdicts.keep("x", "3", "again")
    verdicts.keep("x", "new", 1)
    assert verdicts.load("x", "3") == "again" and verdicts.load("x", "4") is None
    assert verdicts.load("y", "3") is None
    assert [p.name for p in (tmp_path / "draftwise").iterdir()] == ["x.json"]


def fail(*args: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def homeless() -> Path:
    raise RuntimeError("no home")


@pytest.mark.parametrize(
    "broken",
    [
        {"pathlib.Path.mkdir": fail},
        {"pathlib.Path.write_text": fail},
        {"pathlib.Path.replace": fail},
        {"pathlib.Path.replace": fail, "pathlib.Path.unlink": fail},
        {"pathlib.Path.home": homeless},
    ],
    ids=["no folder", "a full disk", "read-only", "read-only from now on", "no home"],
)
def test_a_verdict_that_cannot_be_written_is_lost_and_nothing_else(
    broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The old file stays as it was."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdicts.keep("x", "a", 1)
    with monkeypatch.context() as patch:
        for name, function in broken.items():
            patch.setattr(name, function)
        if "pathlib.Path.home" in broken:
            patch.delenv("XDG_CACHE_HOME")
        verdicts.keep("x", "a", 2)
        verdicts.keep("x", "b", 3)
    assert verdicts.load("x", "a") == 1 and verdicts.load("x", "b") is None
    verdicts.keep("x", "b", 3)
    assert verdicts.load("x", "b") == 3
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("in_its_place", ["draftwise", "draftwise/x.json/folder"])
def test_a_cache_out_of_reach_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_its_place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / in_its_place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_its_place).write_text("")
    verdicts.keep("x", "a", 1)
    assert verdicts.load("x", "a") is None
    assert not list(tmp_path.rglob("*.part"))
