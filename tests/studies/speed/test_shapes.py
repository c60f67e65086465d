"""The study of passes on models of real sizes: its models, what it times, its tables and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch

from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.measure.trace import Trace, read_costs
from draftwise.measure.trace.costs import Costs, DrafterCosts
from draftwise.targets.hf import HFTarget
from studies.speed.shapes import __main__ as study
from studies.speed.shapes import cases, page, passes, prices
from studies.speed.shapes.cases import Case, Effort, Found
from studies.speed.shapes.limits import limits
from studies.speed.shapes.models import SHAPES, made, model, weights
from tests.measure.trace.sims import recorded

SMALL = Effort(widths=(1, 3, 9), context=40, repeats=2, read=1 << 20, side=64)
TINY = Case.of("tiny.float32.eager")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    cases.measured(TINY, SMALL, folder)
    return folder


def test_the_shapes_have_the_published_numbers_of_weights() -> None:
    for name, millions in (("qwen3-0.6b", 596), ("llama-3.2-1b", 1236)):
        with torch.device("meta"):
            from transformers import AutoConfig, AutoModelForCausalLM

            config = AutoConfig.for_model(SHAPES[name].kind, **SHAPES[name].target, tie_word_embeddings=True)
            built = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        assert round(weights(built)[0] / 1e6) == millions


def test_random_weights_are_the_same_each_time_and_give_finite_logits() -> None:
    for kind in ("llama", "qwen3"):
        one, two = (made(kind, SHAPES["tiny"].target, torch.float32) for _ in range(2))
        ids = torch.tensor([[3, 4, 5]])
        with torch.inference_mode():
            logits = one(ids).logits
        assert torch.isfinite(logits).all() and logits.std() > 0
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
        assert one.lm_head.weight is one.model.embed_tokens.weight
    half = model(SHAPES["tiny"], torch.bfloat16, drafter=True)
    assert half.dtype == torch.bfloat16 and weights(half)[1] == 2 * weights(half)[0]


def test_passes_of_every_width_are_over_the_whole_context() -> None:
    target = HFTarget(model(SHAPES["tiny"], torch.float32), probe=False)
    seen: list[tuple[int, int]] = []
    feed = target.rows.feed

    def watched(*args: object, **more: object) -> torch.Tensor:
        logits = feed(*args, **more)  # type: ignore[arg-type]
        seen.append((target.rows.cache.plan.width, target.rows.cache.plan.total))
        return logits

    target.rows.feed = watched  # type: ignore[method-assign]
    found = passes.time_passes(target, (1, 3, 9), 40, 2, budget=60.0)
    assert [len(times) for times in found.values()] == [2, 2, 2]
    assert seen[-3:] == [(1, 40), (3, 42), (9, 48)]


def test_a_budget_ends_the_repeats_but_leaves_two() -> None:
    target = HFTarget(model(SHAPES["tiny"], torch.float32), probe=False)
    found = passes.time_passes(target, (1, 3), 40, 50, budget=0.0)
    assert {len(times) for times in found.values()} == {2}


def test_a_drafter_reads_what_is_behind_and_drafts_as_long_as_asked() -> None:
    drafter = LMDrafter(model(SHAPES["tiny"], torch.float32, drafter=True), 512, probe=False)
    seen: list[int] = []
    feed = drafter.rows.feed

    def watched(first: int, texts: list[list[int]], *args: object, **more: object) -> torch.Tensor:
        seen.append(len(texts[0]))
        return feed(first, texts, *args, **more)  # type: ignore[arg-type]

    drafter.rows.feed = watched  # type: ignore[method-assign,assignment]
    found = passes.time_drafts(drafter, 512, 40, 2, budget=60.0)
    assert [draft[:2] for draft in found[:3]] == [(1, 1), (1, 3), (1, 6)]
    assert {draft[0] for draft in found} == set(passes.LENGTHS)
    assert set(seen) == {passes.READ, *passes.BEHIND}, "the context itself is read once, in part"


def test_a_seated_text_is_continued_at_its_end() -> None:
    target = HFTarget(model(SHAPES["tiny"], torch.float32), probe=False)
    request = Request(1, list(range(40)), 40, Sampling(max_new_tokens=8), Random(0), Random(0))
    target.open(request)
    passes.seated(target, request)
    assert target.rows.held == [39] and len(request.tokens) == 40
    target.verify([(request, Draft.chain([1, 2]))])
    assert target.rows.held == [42]


def test_limits_are_positive_and_all_threads_read_no_less_than_one() -> None:
    found = limits(torch.float32, size=1 << 20, side=64, times=2)
    assert 0 < found["one"] <= found["all"] and found["flops"] > 0


def case(**more: object) -> Found:
    told = {
        "case": TINY,
        "weights": (1000, 4000),
        "drafter_weights": (10, 40),
        "context": 40,
        "passes": {1: [0.01, 0.012, 0.011], 5: [0.013], 9: [0.02, 0.02], 17: [0.019], 33: [0.03]},
        "drafts": [(n, b, 0.001 + 0.002 * n + 0.0005 * b) for n in (1, 2, 4) for b in (1, 3)],
        "limits": {"one": 4e5, "all": 8e5, "flops": 1e6},
        "machine": {"cpu": "x", "cores": 2, "threads": 2, "versions": {"torch": "2", "transformers": "5"}},
        "load": [{"start": 0.0}, {"others": 0.0, "over": 3.0}],
    }
    return Found(**(told | more))  # type: ignore[arg-type]


def test_the_limit_is_the_slower_of_reading_and_multiplying() -> None:
    found = case()
    assert found.limit(1) == pytest.approx(4000 / 8e5)
    assert found.limit(9) == pytest.approx(2 * 1000 * 9 / 1e6)
    assert found.median(1) == 0.011 and found.spread == pytest.approx(0.001 / 0.011)


def test_cost_tables_interpolate_rise_and_can_be_read(tmp_path: Path) -> None:
    like = Costs(
        passes=[1.0], drafters={"ngram": DrafterCosts(step=1e-6), "zoo:other": DrafterCosts(step=9.0)}
    )
    cases.tables(tmp_path, [case()], "zoo:general", 17, like)
    read = read_costs(str(tmp_path / "costs" / f"{TINY.name}.json"))
    assert read.target(1) == 0.011 and read.target(3) == pytest.approx(0.012)
    assert read.target(9) == read.target(17) == pytest.approx(0.0195), "pooled, since 17 took less than 9"
    mine = read.of("zoo:general")
    assert (mine.first, mine.step, mine.catch_up) == pytest.approx((0.001, 0.002, 0.0005))
    assert read.of("ngram").step == 1e-6 and set(read.drafters) == {"zoo:general", "ngram"}


def test_names_of_cases_are_checked() -> None:
    assert Case.of("llama-3.2-1b.bfloat16.eager").shape == "llama-3.2-1b"
    for wrong in ("none.float32.eager", "tiny.float8.eager", "tiny.float32.fast", "tiny"):
        with pytest.raises(UserError, match="is none of"):
            Case.of(wrong)


def test_what_was_measured_is_read_again_and_nothing_else(out: Path, tmp_path: Path) -> None:
    (found,) = cases.read(out)
    assert found.case == TINY and sorted(found.passes) == [1, 3, 9] and found.context == 40
    assert found.weights[1] == 4 * found.weights[0] > found.drafter_weights[1] > 0
    assert "ms by tokens 1: " in study.said(found)
    with pytest.raises(UserError, match="holds no measured case"):
        cases.read(tmp_path)
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "x.json").write_text("{}")
    with pytest.raises(UserError, match="delete it and measure again"):
        cases.read(tmp_path)


def test_measure_runs_each_case_by_itself_and_keeps_what_is_there(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(line: list[str], *, check: bool) -> object:
        ran.append(line)
        return type("Ran", (), {"returncode": 3})()

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["study", "measure", "--out", str(out), "--cases", TINY.name])
    assert study.main() == 0 and not ran
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--again"])
    assert study.main() == 3
    assert ran[0][1:4] == ["-m", "studies.speed.shapes", "one"] and TINY.name in ran[0]
    assert float(ran[0][ran[0].index("--load") + 1]) >= 0.0, "that of the cases before would count as others'"


def test_the_page_gets_tables_picture_and_costs(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of the tables are those of the files; another page than one with markers is refused."""
    monkeypatch.setattr(page, "SHOWN", (1, 3, 9))
    monkeypatch.setattr(prices, "DRAFTER", "good")
    folder = tmp_path / "trace"
    trace = recorded(folder, n=3, length=16)
    assert isinstance(trace, Trace) and "good" in trace.drafters
    costs = {"format": "draftwise-costs", "version": 1, "passes": [1.0]}
    (folder / "costs.json").write_text(json.dumps(costs))
    told = tmp_path / "page.md"
    told.write_text(
        "".join(f"<!-- {n} -->\nold\n<!-- end of {n} -->\n" for n in ("limits", "passes", "prices"))
    )
    line = ["study", "page", "--out", str(out)]
    monkeypatch.setattr(
        sys,
        "argv",
        [*line, "--trace", str(folder), "--shapes", "tiny", "--page", str(told), "--pictures", str(tmp_path)],
    )
    assert study.main() == 0
    text = told.read_text()
    (found,) = cases.read(out)
    ms = 1e3 * found.median(9)
    assert "old" not in text and (f"| {ms:.0f} |" if ms >= 100 else f"| {ms:.1f} |") in text
    row = prices.speedups(out, TINY.name)["auto"]
    assert f"{row['speedup']:.2f}" in text and "`static-4` good" in text
    assert "tokens in the pass" in (tmp_path / "pass-costs.svg").read_text()
    told.write_text("no markers")
    with pytest.raises(UserError, match="add them"):
        study.main()
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(UserError, match="--trace is missing"):
        study.main()
