"""`draftwise suggest`: drafters that fit, what they cost, and commands that work."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from draftwise.models import hub
from draftwise.models.zoo import bundled

from .conftest import Refused, Run
from .test_help import parsed


def found(run: Run, *arguments: str) -> dict[str, dict[str, Any]]:
    status, out, err = run("suggest", *arguments, "--json")
    assert (status, err) == (0, "")
    return {row["drafter"]: row for row in json.loads(out)["drafters"]}


@pytest.fixture(autouse=True)
def cached(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What was downloaded before: nothing, unless a test adds it."""
    places: dict[str, Path] = {}
    monkeypatch.setattr(hub, "cached_models", lambda: places)
    return places


def test_the_bundled_target_has_lookups_models_and_heads(run: Run) -> None:
    rows = found(run, "zoo:target")
    assert {"ngram", "suffix", "retrieval:my-datastore", "lookahead", "early-exit"} <= rows.keys()
    assert {"zoo:general", "zoo:code", "eagle:zoo:eagle", "medusa:zoo:medusa"} <= rows.keys()
    assert not {"zoo:target", "none", "zoo:disco", "zoo:router"} & rows.keys()
    general = rows["zoo:general"]
    assert general["weight_bytes"] == 2 * bundled("zoo:general").parameters
    assert general["cache_bytes_per_1000_tokens"] > 0 and general["status"] == "available"
    for row in rows.values():
        parsed(shlex.split(row["command"])[1:])


def test_every_available_drafter_is_taken_by_the_target(run: Run) -> None:
    from draftwise import Decoder

    names = [name for name, row in found(run, "zoo:target").items() if row["status"] == "available"]
    decoder = Decoder.from_pretrained("zoo:target", drafters=names, policy="none", pack=False)
    assert list(decoder.loop.pool.drafters) == names


def test_a_layer_in_the_targets_own_files_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.models.heads.mtp_folders import written

    assert "mtp" not in found(run, "zoo:target")
    written(tmp_path / "target", "glm-4.5")
    capsys.readouterr()  # Transformers tells of its progress
    row = found(run, str(tmp_path / "target"))["mtp"]
    assert row["status"] == "available" and row["weight_bytes"] > 0


def test_a_local_folder_and_what_lies_beside_it(run: Run, tmp_path: Path) -> None:
    for name in ("target", "sql"):
        shutil.copytree(bundled(f"zoo:{name}").path, tmp_path / name)
    other = shutil.copytree(tmp_path / "sql", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"id": 4096, "content": "<new>"})
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = found(run, str(tmp_path / "target"))
    assert str(tmp_path / "sql") in rows and "zoo:general" in rows
    assert str(other) not in rows, "another tokenizer"
    assert str(tmp_path / "target") not in rows and "zoo:target" not in rows
    assert "does not name its model" in run("suggest", str(tmp_path / "target"))[1]


def test_what_is_damaged_beside_the_target_is_left_out(run: Run, tmp_path: Path) -> None:
    """Half a download, or another program's folder, is no reason to suggest nothing."""
    for name in ("target", "sql", "no-settings", "list", "tokenizer", "pointer"):
        shutil.copytree(bundled("zoo:target" if name == "target" else "zoo:sql").path, tmp_path / name)
    (tmp_path / "no-settings" / "config.json").write_text("{")
    (tmp_path / "list" / "config.json").write_text('{"architectures": 5, "text_config": null}')
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for weights in (tmp_path / "pointer").glob("*.safetensors"):
        weights.write_text(pointer)
    rows = found(run, str(tmp_path / "target"))
    assert [name for name in rows if str(tmp_path) in name] == [str(tmp_path / "sql")]


def test_offline_published_names_are_not_checked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(name: str) -> tuple[None, None]:
        asked.append(name)
        return None, None

    monkeypatch.setattr(hub, "ask", ask)
    rows = found(run, "Qwen/Qwen3-8B")
    assert set(asked) == {"Qwen/Qwen3-8B"}, "without an answer nothing more is asked"
    assert rows["Qwen/Qwen3-0.6B"]["status"] == "not checked, no network"
    assert rows["eagle:AngelSlim/Qwen3-8B_eagle3"]["weight_bytes"] is None
    out = run("suggest", "Qwen/Qwen3-8B")[1]
    assert "not checked because there is no network" in out and "is not downloaded" in out
    assert out.endswith("Start with: --drafters ngram,suffix\n")


@pytest.mark.parametrize("there", [False, None])
def test_a_target_that_is_nowhere_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, there: bool | None
) -> None:
    monkeypatch.setattr(hub, "ask", lambda name: (there, None))
    err = refused("suggest", "nope")
    assert "no folder 'nope' here" in err and "zoo:target" in err
    if there is False:
        refused("suggest", "some/target")


@pytest.mark.parametrize(("config", "said"), [(None, "has no config.json"), ("{", "cannot be read")])
def test_a_folder_that_holds_no_model_is_refused(
    refused: Refused, tmp_path: Path, config: str | None, said: str
) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    err = refused("suggest", str(tmp_path))
    assert str(tmp_path) in err and said in err


def test_with_a_network_only_what_exists_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"Qwen/Qwen3-8B": None, "Qwen/Qwen3-0.6B": 600_000_000, "AngelSlim/Qwen3-8B_eagle3": None}
    monkeypatch.setattr(hub, "ask", lambda name: (name in there, there.get(name)))
    rows = found(run, "Qwen/Qwen3-8B")
    assert [name for name, row in rows.items() if row["status"] == "on the hub"] == [
        "eagle:AngelSlim/Qwen3-8B_eagle3",
        "Qwen/Qwen3-0.6B",
    ]
    assert rows["Qwen/Qwen3-0.6B"]["weight_bytes"] == 1_200_000_000


def test_downloaded_models_are_compared(run: Run, cached: dict[str, Path]) -> None:
    cached["some/target"] = Path(bundled("zoo:target").path)
    cached["some/small"] = Path(bundled("zoo:qa").path)
    rows = found(run, "some/target")
    assert rows["some/small"]["status"] == "available"


def test_names_survive_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = run("suggest", "zoo:target")[1]
    assert "…" not in out
    for name in ("zoo:summarization (available)", "medusa:zoo:medusa (available)", "2.5 MB"):
        assert name in " ".join(out.split())


def test_the_hub_is_asked_once_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    calls: list[str] = []

    class Api:
        def model_info(self, name: str, **_: object) -> object:
            calls.append(name)
            raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub.ask("never/there-1") == hub.ask("never/there-1") == (None, None)
    assert calls == ["never/there-1"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.ask("never/there-2") == (None, None) and len(calls) == 1
