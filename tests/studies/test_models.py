"""The scripts that make the bundled models and measure them, on tiny models."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftwise import Decoder
from draftwise.models.zoo import read_model
from tests.train.world import LETTERS, write_prompts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Domains as the scripts want them, in letters."""
    for name in ("code_python", "mbpp", "gsm8k", "translation", "summarization", "qa", "sql"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for part, n in (("train", 12), ("test", 3)):
            file = write_prompts(tmp_path / "data" / name / f"{part}.jsonl", n)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            more = LETTERS[len(name) : len(name) + 3]
            rows = [row | {"domain": name, "prompt": row["prompt"] + more} for row in rows]
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
    only = "general,sql,router"
    module = script("models.make_models")
    monkeypatch.setattr(module, "MIXTURE", module.MIXTURE | {"max_new_tokens": 8})
    found = module.recipes(str(target), out, "")
    assert set(only.split(",")) < set(found) and len(found) == 12
    run(monkeypatch, "models.make_models", *asked, "--only", only)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == only.split(",")
    made = Decoder.from_pretrained(str(target), drafters=[str(out / "sql"), "ngram"], policy="ucb1")
    assert made.generate([4, 5, 6], max_new_tokens=8).token_ids
    assert json.loads((out / "sql" / "results.json").read_text())["steps"] == 3
    assert (out / "mixture.answers.jsonl").exists() and (out / "router" / "model.safetensors").exists()
    ship = script("models.ship_models")
    assert (ship.ZOO / "target" / "model.safetensors").exists()
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


def test_drafters_of_a_real_model_are_made_one_from_the_other(
    world: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module, out = script("models.make_smollm2"), tmp_path / "out"
    small = {"target": str(world / "target"), "max_new_tokens": 8, "together": 8, "held_out": 4}
    monkeypatch.setattr(module, "COMMON", module.COMMON | small)
    recipes = module.recipes

    def few(out: Path) -> Any:
        found = recipes(out)
        for name, (_, options) in found.items():
            options |= {"drafted": 12 if name == "smollm2-first" else 6, "held_out": 4, "context": 0}
        return found

    monkeypatch.setattr(module, "recipes", few)
    only = "smollm2-first,smollm2-eagle3,smollm2-math"
    words = ("--data", data, "--out", out, "--only", only, "--steps", 0.002, "--scale", 0.02)
    run(monkeypatch, "models.make_smollm2", *words)
    files = [(out / name).read_text().splitlines() for name in ("prompts.jsonl", "further.jsonl")]
    assert not set(files[0]) & set(files[1]) and all(files)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == only.split(",")
    made = Decoder.from_pretrained(
        str(world / "target"), drafters=[f"eagle:{out / name}" for name in only.split(",")], policy="ucb1"
    )
    plain = Decoder.from_pretrained(str(world / "target"), policy="none")
    text = made.generate([4, 5, 6], max_new_tokens=24)
    assert text.token_ids == plain.generate([4, 5, 6], max_new_tokens=24).token_ids
    assert text.stats.accepted < text.stats.drafted, "after so few steps some drafts are wrong"


def test_the_table_of_acceptance(
    world: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = f"{world / 'target'},{world / 'drafter'}"
    words = ("--data", data, "--target", world / "target", "--drafters", names, "--limit", 1)
    run(monkeypatch, "speed.acceptance", *words, "--max-new-tokens", 12)
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(lines) == 7
    for _, prompts, own, other in lines:
        assert prompts == "1" and own.endswith("*") and float(own[:-1]) > float(other[:-2])
