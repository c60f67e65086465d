"""The scripts that make the bundled models and measure them, on tiny models."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models.load import load_model
from draftwise.models.zoo import find, read_model
from draftwise.train import eagle
from draftwise.train.settings import EagleRun
from tests.effort import thorough
from tests.train.world import LETTERS, write_prompts

POOL = ["metasd-ucb", "metasd-exp3", "exp3spec", "hedgespec"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Domains as the scripts want them, in letters."""
    for name in ("code_python", "mbpp", "gsm8k", "translation", "summarization", "qa", "sql"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for part, n in (("train", 12), ("test", 3)):
            file = write_prompts(tmp_path / "data" / name / f"{part}.jsonl", n)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            for i, row in enumerate(rows):
                row["domain"], row["completion"] = name, LETTERS[i : i + 6]
                row["prompt"] += LETTERS[len(name) : len(name) + 3]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


def script(name: str) -> ModuleType:
    return importlib.import_module(f"studies.{name}")


def run(monkeypatch: pytest.MonkeyPatch, name: str, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    script(name).main()


def test_the_models_are_made_one_from_the_other(
    world: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out, target = tmp_path / "out", world / "target"
    asked = ("--data", data, "--out", out, "--target", target, "--scale", 0.002, "--steps", 0.002)
    only = "general,sql,medusa,specdecpp,router"
    module = script("models.make_models")
    monkeypatch.setattr(module, "MIXTURE", module.MIXTURE | {"max_new_tokens": 8})
    found = module.recipes(str(target), out, "")
    assert set(only.split(",")) < set(found) and len(found) == 12
    monkeypatch.setattr(sys, "argv", ["make_models", *map(str, asked), "--only", only])
    module.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == only.split(",")
    made = Decoder.from_pretrained(
        str(target), drafters=[str(out / "sql"), f"medusa:{out / 'medusa'}"], policy="ucb1"
    )
    assert made.generate([4, 5, 6], max_new_tokens=8).token_ids
    assert json.loads((out / "sql" / "results.json").read_text())["steps"] == 3
    assert (out / "mixture.answers.jsonl").exists() and (out / "router" / "model.safetensors").exists()
    ship = script("models.ship_models")
    assert ship.ZOO.samefile(find("zoo:target").parent)
    monkeypatch.setattr(ship, "ZOO", tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    run(monkeypatch, "models.ship_models", out)
    assert capsys.readouterr().out.startswith(f"{only.replace(',', ', ')}: ")
    for name in only.split(","):
        files = {file.name for file in (tmp_path / "zoo" / name).iterdir()}
        assert {"README.md", "model.safetensors"} <= files and not files & {"training", "results.json"}
        card = (tmp_path / "zoo" / name / "README.md").read_text()
        assert f"# zoo:{name}\n" in card
        assert str(out) not in card
        assert "(../NOTICE)" in card
        assert read_model(tmp_path / "zoo" / name).description == ship.DESCRIPTIONS[name]
    assert "--drafters zoo:sql\n" in (tmp_path / "zoo" / "sql" / "README.md").read_text()
    assert "--policy router:zoo:router\n" in (tmp_path / "zoo" / "router" / "README.md").read_text()


def test_the_table_of_acceptance(
    world: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = f"{world / 'target'},{world / 'drafter'}"
    words = ("--data", data, "--target", world / "target", "--drafters", names, "--limit", 1)
    run(monkeypatch, "speed.acceptance", *words, "--max-new-tokens", 12, "--out", tmp_path / "t.json")
    table = json.loads((tmp_path / "t.json").read_text())["table"]
    assert len(table) == 7
    for row in table.values():
        assert row["prompts"] == 1  # a copy of the target is never wrong
        assert row[names.split(",")[0]]["mean_accepted"] > row[names.split(",")[1]]["mean_accepted"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all("*" in line for line in lines[2:])


def test_the_routers_workloads(data: Path) -> None:
    found = script("speed.router").workloads(data, 2)
    assert {name: len(rows) for name, rows in found.items()} == {
        "as asked": 14,
        "other words": 0,  # letters are in no form of the table
        "elsewhere": 14,
        "long": 14,
    }
    asked = {row["prompt"] for row in found["as asked"]}
    assert all(any(row["prompt"].endswith(text) for text in asked) for row in found["long"])


@thorough
def test_a_pool_of_heads_is_made_and_measured(
    world: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out, target = tmp_path / "pool", world / "target"
    first: dict[str, Any] = {"data": (str(world / "prompts.jsonl"),), "target": str(target), "held_out": 2}
    start = EagleRun(**first, steps=1, max_new_tokens=8)
    eagle.train(start, tmp_path / "start", lambda *_: None)
    asked = ("--data", data, "--out", out, "--target", target, "--start", tmp_path / "start", "--steps", 0.03)
    more = ("--scale", 0.04, "--answer-tokens", 8, "--prompts", 5, "--max-new-tokens", 12)
    test = data / "translation" / "test.jsonl"
    test.write_text("".join(json.dumps({"prompt": LETTERS[i : i + 5]}) + "\n" for i in range(5)))
    for _ in range(2):  # the second time nothing is made or decoded again
        run(monkeypatch, "speed.eagle_pool", *asked, *more)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in shown[:3]] == ["code", "sql", "translation"]
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
    (head,) = [i for i, line in enumerate(shown[: len(shown) // 2]) if line.startswith("| accepted a round")]
    assert shown[head] == "| accepted a round | code, n = 3 | sql, n = 3 | translation, n = 5 | all, n = 11 |"
    named = [line.split(" | ")[0].removeprefix("| ") for line in shown[head + 2 : head + 11]]
    assert named == [
        "generalist",
        "head for code",
        "own head",
        "head for sql",
        "head for translation",
        *POOL,
    ]
    claims = [line for line in shown[: len(shown) // 2] if "MetaEagle beats the generalist" in line]
    assert len(claims) == 1 and claims[0].count("too few prompts") == 2  # three prompts have no interval
    assert len((out / "rows.jsonl").read_text().splitlines()) == 8 * 11


def test_a_pool_that_changed_the_text_would_be_found() -> None:
    pool = script("speed.eagle_pool")
    rows = [pool.Row(name, "code", 0, 3, 2, text) for name, text in (("a", "x"), ("head for code", "x"))]
    assert pool.by_method(rows)["own head"]["code"][0].rounds == 3
    with pytest.raises(UserError, match="b wrote another text for prompt 0 of code"):
        pool.by_method([*rows, pool.Row("b", "code", 0, 3, 2, "y")])


def test_a_target_from_nothing(
    world: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--data", data, "--out", tmp_path / "made", "--tokenizer", world / "target", "--layers", 1)
    more = ("--width", 64, "--length", 16, "--steps", 25, "--batch", 8, "--rate", 0.01)
    run(monkeypatch, "models.make_target", *words, *more)
    log = json.loads((tmp_path / "made" / "results.json").read_text())["log"]
    held = [row["loss held out"] for row in log if "loss held out" in row]
    assert held[-1] < 0.9 * held[0]
    decoder = Decoder.from_pretrained(str(tmp_path / "made"), policy="none")
    assert decoder.generate("abc", max_new_tokens=5).token_ids


def test_a_heavier_model_writes_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_model: Any
) -> None:
    run(monkeypatch, "models.heavier", "zoo:target", "--times", 3, "--out", tmp_path / "heavy")
    heavy = load_model(str(tmp_path / "heavy"))
    assert heavy.config.intermediate_size == 3 * plain_model.config.intermediate_size
    assert heavy.num_parameters() > 2 * plain_model.num_parameters()
    ids = torch.tensor([[1, 5, 9, 700, 12, 40]])
    with torch.no_grad():
        assert torch.allclose(heavy(ids).logits, plain_model(ids).logits, atol=1e-4)
    decoder = Decoder.from_pretrained(str(tmp_path / "heavy"), drafters=["zoo:general", "ngram"])
    assert decoder.generate("One two three", max_new_tokens=8).token_ids


def test_what_cannot_become_heavier_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--times 1: give 2 or more"):
        run(monkeypatch, "models.heavier", "zoo:target", "--times", 1, "--out", tmp_path)
    with pytest.raises(UserError, match="Linear has no gated feed-forward layers"):
        script("models.heavier").widened(torch.nn.Linear(2, 2), 2)
    assert not list(tmp_path.iterdir())
