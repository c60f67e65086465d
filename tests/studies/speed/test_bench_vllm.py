"""The table of a study inside vLLM: ratios are to plain vLLM of the same run."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from draftwise.errors import UserError
from studies.common import vllm
from studies.speed.bench_vllm import engines, methods, table

GIVEN = {
    "target": "zoo:target",
    "own": "vllm:draft_model:zoo:general",
    "beside": "ngram,suffix",
    "cores": "0",
    "runs": 1,
    "only": ["again"],
}


def result(name: str, run: int, rate: float, identical: int = 2) -> dict[str, Any]:
    return {
        "name": name,
        "run": run,
        "levels": {"4": {"tokens": rate, "seconds": 1.0}},
        "identical": identical,
    }


def test_a_ratio_is_to_plain_decoding_of_its_run() -> None:
    fast = [result("plain", 0, 100.0), result("ours", 0, 150.0), result("plain, again", 0, 200.0)]
    slow = [result("ours", 1, 40.0, identical=1), result("plain", 1, 80.0)]
    absent = {"name": "other", "run": 0, "absent": "no such method", "identical": 0}
    lines = table([*fast, *slow, absent]).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines}
    assert cells["ours"] == ["95 tok/s (0.75x, 0.50-1.00)", "1"]
    assert cells["plain"] == ["90 tok/s (0.83x, 0.67-1.00)", "2"]
    assert cells["other"] == ["no such method"]


def test_methods_take_turns_and_texts_are_compared_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def apart(one: dict[str, Any], *, cores: str) -> dict[str, Any]:
        config = one["speculative"]
        begun.append(config["method"] if config else "plain")
        if config and config["num_speculative_tokens"] == 5:
            raise UserError("no memory")
        return {"levels": {}, "texts": [[1], [2]] if config is None else [[1], [3]]}

    monkeypatch.setattr(vllm, "apart", apart)
    results = engines(Namespace(**GIVEN | {"only": ["ngram", "again"], "runs": 2}))
    assert begun == ["ngram", "ngram", "plain", "ngram", "plain", "ngram"]
    assert [one["run"] for one in results] == [0, 0, 0, 1, 1, 1]
    assert [one["identical"] for one in results] == [1, 0, 2, 0, 2, 1]
    assert [one.get("absent") for one in results] == [None, "no memory", None, "no memory", None, None]


def test_vllms_model_is_the_one_that_is_named() -> None:
    """A head is a method of its own, in vLLM and beside our policies; ours beside the engine are others."""
    every = dict(methods("vllm:eagle3:zoo:smollm2-eagle3", "suffix"))
    for length in (1, 3):
        given = every[f"vllm eagle3 {length}"]
        assert given and given["method"] == "eagle3" and given["model"].endswith("smollm2-eagle3")
        assert given["num_speculative_tokens"] == length
    mine, beside = every["draftwise auto, vLLM's eagle3"], every["draftwise auto"]
    assert mine and mine["drafters"] == ["vllm:eagle3:zoo:smollm2-eagle3", "ngram", "suffix"]
    assert beside and beside["drafters"] == ["suffix"] and not any("draft model" in name for name in every)


def test_a_model_without_a_path_is_part_of_the_target() -> None:
    given = dict(methods("vllm:mtp", "suffix"))["vllm mtp 1"]
    assert given == {"method": "mtp", "num_speculative_tokens": 1}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"own": "vllm:ngram"}, "--own vllm:ngram: give a model"),
        ({"own": "suffix"}, "--own suffix: give a model"),
        ({"only": ["nothing"]}, "--only nothing: .*choose from plain; "),
        ({"target": "zoo:nowhere"}, "unknown model 'zoo:nowhere'"),
    ],
)
def test_a_wrong_option_starts_no_engine(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], line: str
) -> None:
    def apart(one: dict[str, Any], *, cores: str) -> dict[str, Any]:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(vllm, "apart", apart)
    with pytest.raises(UserError, match=line):
        engines(Namespace(**GIVEN | wrong))


def test_where_no_engine_runs_the_reason_is_told() -> None:
    with pytest.raises(UserError, match="no engine of vLLM ran: no memory"):
        table([{"name": "plain", "run": 0, "absent": "no memory", "identical": 0}])
