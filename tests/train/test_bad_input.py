"""What cannot be trained is refused at once, with one line that names the value and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftwise.cli import main
from draftwise.errors import UserError
from draftwise.train.folder import Folder
from draftwise.train.settings import (
    ClassifierRun,
    DrafterRun,
    EagleRun,
    MedusaRun,
    RouterRun,
    Training,
    read_options,
)
from tests.train.world import Options, silent


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (DrafterRun, {"data": ()}, "no data: give --data"),
        (DrafterRun, {"steps": 0}, "steps=0: give a whole number of at least 1"),
        (DrafterRun, {"batch": -1}, "batch=-1"),
        (DrafterRun, {"rate": 0.0}, "rate=0.0: give a positive number"),
        (DrafterRun, {"rate": float("nan")}, "rate=nan"),
        (DrafterRun, {"warmup": 1.0}, "warmup=1.0"),
        (DrafterRun, {"temperatures": ()}, "temperatures is empty"),
        (DrafterRun, {"temperatures": (0.3, -1.0)}, "temperatures=-1.0"),
        (DrafterRun, {"held_out": 0}, "held_out=0"),
        (DrafterRun, {"loss": "mse"}, "loss=mse: choose from kl, tv, ce"),
        (DrafterRun, {"precision": "int8"}, "precision=int8: choose from auto, float32, bfloat16"),
        (DrafterRun, {"device": "tpu"}, "device=tpu: choose from auto, cpu"),
        (EagleRun, {"kind": "eagle", "drafted": 9}, "an EAGLE head drafts from all tokens"),
        (EagleRun, {"depth": 0}, "depth=0"),
        (EagleRun, {"dtype": "int4"}, "dtype=int4"),
        (MedusaRun, {"heads": 0}, "heads=0"),
        (MedusaRun, {"fading": 0.0}, "fading=0.0"),
        (ClassifierRun, {"kind": "lstm"}, "kind=lstm: choose from disco, specdecpp"),
        (ClassifierRun, {"blocks": 65}, "blocks=65"),
        (ClassifierRun, {"keep": 1.0}, "keep=1.0"),
        (ClassifierRun, {"labels": "yes"}, "labels=yes"),
    ],
)
def test_options_out_of_range(options: Options, kind: type[Training], changes: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        kind(**options(**changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: many", "steps='many' is not a whole number"),
        ("steps: 2.5", "steps=2.5 is not a whole number"),
        ("rate: [1]", "rate=[1] is not a number"),
        ("raw: 3", "raw=3: write true or false"),
        ("start: 3", "start=3: write a text"),
        ("stepps: 3", "no option 'stepps'; choose from"),
        ("data: [a, '']", "data has an empty part"),
        ("- 3", "has no options"),
        ("a: [", "is not YAML"),
        ("", "cannot read the options in"),
    ],
)
def test_a_yaml_file_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    if text:
        (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_options(DrafterRun, tmp_path / "run.yaml", {"data": "x.jsonl"} if "data" not in text else {})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (None, "cannot read the prompts"),
        ("{", "line 1: not JSON"),
        ('{"prompt": " "}', "line 1: no text in"),
        ('{"prompt": "abc"}', "1 prompt in "),
    ],
)
def test_data_that_cannot_be_learnt_from(
    tmp_path: Path, world: Path, capsys: pytest.CaptureFixture[str], lines: str | None, said: str
) -> None:
    if lines is not None:
        (tmp_path / "data.jsonl").write_text(lines + "\n")
    words = ["--data", str(tmp_path / "data.jsonl"), "--target", str(world / "target")]
    assert main(["train", "drafter", *words, "--out", str(tmp_path / "made")]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.startswith("error: ") and shown.err.count("\n") == 1
    assert not shown.out
    assert not (tmp_path / "made").exists(), "what is refused leaves nothing"


def test_folders_that_hold_something_else(
    tmp_path: Path, world: Path, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(steps=1, start=str(world / "drafter"))
    given |= {"data": list(given["data"]), "temperatures": list(given["temperatures"])}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(given))
    words = ["train", "drafter", "--config", str(tmp_path / "run.yaml"), "--out"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    assert main([*words, str(tmp_path / "full")]) == 2
    assert "holds no training" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "made")]) == 0
    assert main([*words, str(tmp_path / "made"), "--steps", "2"]) == 2
    assert "holds a training with another steps" in capsys.readouterr().err
    assert main(["train", "medusa", *words[2:], str(tmp_path / "made")]) == 2
    assert "no option" in capsys.readouterr().err
    assert main(["train", "medusa", "--data", "a", "--out", str(tmp_path / "made")]) == 2
    assert "made holds what `draftwise train drafter` writes: give another --out" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main([*words, str(tmp_path / "file")]) == 2
    assert main([*words, str(tmp_path / "file" / "below")]) == 2
    assert "cannot make" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["data", "target", "start"])
def test_a_misspelt_name_does_not_block_the_corrected_command(
    tmp_path: Path, world: Path, options: Options, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    given = options(steps=1, start=str(world / "drafter"))
    given |= {"data": list(given["data"]), "temperatures": list(given["temperatures"])}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(given))
    words = ["train", "drafter", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "made")]
    assert main([*words, f"--{wrong}", str(tmp_path / "mispelt")]) == 2
    assert "mispelt" in capsys.readouterr().err
    assert main(words) == 0, capsys.readouterr().err
    assert main([*words, "--steps", "2"]) == 2, "what was learned is not written over"


def test_models_that_do_not_fit(tmp_path: Path, world: Path, options: Options) -> None:
    from draftwise.train import drafter

    def tell(what: str, done: int, total: int, left: float | None = None) -> None:
        assert not what.startswith("Target answers"), "refused before the long work"

    for changes, said in (
        ({"start": str(tmp_path / "none")}, "no model"),
        ({"start": "zoo:general"}, "different vocabularies"),
        ({"width": 20}, "the target's heads are 8 wide"),
        ({"max_new_tokens": 500}, "fit the target's window of 128"),
    ):
        with pytest.raises(UserError, match=said):
            drafter.train(DrafterRun(**options(answers="", **changes)), tmp_path / said[:9], tell)
        assert not (tmp_path / said[:9]).exists()


def test_drafters_and_heads_that_do_not_fit(tmp_path: Path, options: Options) -> None:
    from draftwise.train import classifier, eagle

    def tell(what: str, done: int, total: int, left: float | None = None) -> None:
        assert not what.startswith("Target answers"), "refused before the long work"

    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="different vocabularies"):
        run = ClassifierRun(**options(answers="", drafter="zoo:general"))
        classifier.train(run, tmp_path / "mine", tell)
    with pytest.raises(UserError, match="choose the head made for this target"):
        eagle.train(EagleRun(**options(answers="", start="zoo:eagle")), tmp_path / "mine", tell)
    assert not list((tmp_path / "mine").iterdir()), "a folder that was there stays, as it was"


def test_packages_that_are_missing(tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwise.train import drafter, settings

    monkeypatch.setattr(settings, "find_spec", lambda name: None if name in ("yaml", "sklearn") else name)
    with pytest.raises(UserError, match=r"training needs sklearn, yaml: pip install 'draftwise\[train\]'"):
        drafter.train(DrafterRun(**options()), tmp_path / "made", silent)
    with pytest.raises(UserError, match="training needs"):
        read_options(DrafterRun, tmp_path / "run.yaml", {})


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, world: Path, options: Options) -> None:
    from draftwise.train import drafter

    run = DrafterRun(**options(start=str(world / "drafter"), rate=1e30, clip=1e30))
    with pytest.raises(UserError, match=r"the loss is (nan|inf) at step \d+: lower --rate"):
        drafter.train(run, tmp_path / "made", silent)
    assert drafter.train(replace(run, rate=1e-3, steps=1), tmp_path / "made", silent)["steps"] == 1


@pytest.mark.parametrize("routes", [(), ("low",), ("low=",), ("=zoo:code",)])
def test_routes_that_lead_nowhere(options: Options, routes: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="write DOMAIN=DRAFTER"):
        RouterRun(data=("x",), routes=routes)


@pytest.mark.parametrize("text", [b"", b"7", b"a: [b", b"\x00", b"\xff", b"[" * 5000])
@pytest.mark.parametrize("name", ["training/run.yaml", "results.json", "training/before.json"])
def test_a_damaged_file_of_a_training_is_named(
    tmp_path: Path, options: Options, name: str, text: bytes
) -> None:
    folder, run = Folder(tmp_path / "made"), DrafterRun(**options())
    assert folder.claim("drafter", run) is None
    (folder.out / name).write_bytes(text)
    with pytest.raises(UserError, match=f"{name} is damaged: give a new folder as --out") as caught:
        folder.claim("drafter", run)
        folder.once("before", dict)
    assert "\n" not in str(caught.value)
