"""Every verb from end to end on tiny models: what is made works, and what is learned from is learned.

Every update reads all answers, so that the loss of each step is that of the same batch: descent lowers it.
How much better a drafter becomes on other text is a matter of luck in so few steps, and is not asked.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftwise import Decoder
from draftwise.cli import main
from draftwise.errors import UserError
from draftwise.models.heads.eagle import Eagle3, load_eagle
from draftwise.models.heads.medusa import load_medusa
from draftwise.models.load import load_model, load_tokenizer
from draftwise.policies.classifiers.stopping import Disco, SpecDecPlus, load
from draftwise.train import classifier, drafter, eagle, medusa
from draftwise.train.settings import ClassifierRun, DrafterRun, EagleRun, MedusaRun
from tests.effort import some
from tests.models.heads import folders
from tests.train.world import Options, silent

PROMPT = [5, 9, 3, 12, 4]


def losses(results: dict[str, Any]) -> list[float]:
    return [row["loss"] for row in results["log"] if "loss" in row]


def learnt(results: dict[str, Any]) -> None:
    """The loss fell on the one batch that there was."""
    found = losses(results)
    assert len(found) == results["steps"] and found[-1] < 0.995 * found[0], found


def complete(out: Path) -> None:
    """What every training leaves behind."""
    assert json.loads((out / "results.json").read_text())
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["license_name"] == "CC0-1.0" and "draftwise" in head["tags"]
    assert "| accepted tokens a round |" in text and "| ours | 24 |" in text and "| low | 12 |" in text
    assert re.search(r"\d+ answers of the target, and [1-9]\d* held out, to prompts", text)
    assert not list(out.rglob("*.part"))
    assert len({file.stat().st_mode for file in out.iterdir() if file.is_file()}) == 1
    assert not [f for f in out.rglob("*") if f.suffix in (".pkl", ".pt", ".bin", ".pth")]


def names_its_use(out: Path, use: str) -> None:
    """As a language model it is refused, with what to write."""
    with pytest.raises(UserError, match=re.escape(f"from `draftwise train`: write {use}")):
        load_tokenizer(str(out))


def drafts(world: Path, name: str) -> None:
    """What was made drafts, and the text is the target's own."""
    target = str(world / "target")
    plain = Decoder.from_pretrained(target, policy="none").generate(PROMPT, max_new_tokens=30)
    ours = Decoder.from_pretrained(target, drafters=[name], policy="static-3")
    out = ours.generate(PROMPT, max_new_tokens=30)
    assert out.token_ids == plain.token_ids and out.stats.drafted > 0


@pytest.fixture
def small(options: Options) -> Options:
    """Options of a few steps, each on all answers."""

    def make(**changes: Any) -> dict[str, Any]:
        few = {"steps": 8, "batch": 1000, "warmup": 0.0, "log_every": 1, "licence": "CC0-1.0"}
        return options(**few | changes)

    return make


@pytest.mark.parametrize("loss", some(["kl", "tv", "ce"], 2))
def test_a_drafter_learns_the_targets_text(world: Path, tmp_path: Path, small: Options, loss: str) -> None:
    run = DrafterRun(**small(start=str(world / "drafter"), loss=loss))
    found = drafter.train(run, tmp_path / "made", silent)
    learnt(found)
    assert {"mean_accepted", "acceptance_rate", "rounds"} <= found["before"].keys() & found["after"].keys()
    assert isinstance(found["after"]["rounds"], int)
    complete(tmp_path / "made")
    drafts(world, str(tmp_path / "made"))
    assert drafter.train(run, tmp_path / "made", silent) == found  # done: nothing is trained again


def test_measuring_counts_prompts(world: Path, tmp_path: Path, options: Options) -> None:
    counts: list[int] = []

    def tell(what: str, done: int, total: int, left: float | None = None) -> None:
        if what == "Measuring":
            assert total == 6
            counts.append(done)

    run = DrafterRun(**options(start=str(world / "drafter"), steps=1))
    drafter.train(run, tmp_path / "made", tell)
    assert counts == [*range(7)] * 2, "all prompts, before and after"


def test_one_that_is_the_target_has_nothing_to_learn(world: Path, tmp_path: Path, options: Options) -> None:
    """What is measured, where it is known: every guess is right."""
    run = DrafterRun(**options(start=str(world / "target"), rate=1e-12, steps=2, precision="float32"))
    found = drafter.train(run, tmp_path / "made", silent)
    assert losses(found) == pytest.approx([0.0], abs=1e-5)
    for row in found["log"]:
        if "overlap" in row:
            assert row["overlap"] == pytest.approx(1.0, abs=1e-5) and row["agreement"] == 1.0
    assert found["before"] == found["after"] and found["after"]["acceptance_rate"] == 1.0


def test_a_drafter_with_code_of_its_own_is_trained_where_that_is_trusted(
    world: Path, tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = shutil.copytree(world / "drafter", tmp_path / "own")
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own", "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    run = DrafterRun(**options(start=str(folder), steps=1, trust_remote_code=True))
    assert drafter.train(run, tmp_path / "made", silent)["steps"] == 1


def test_a_new_drafter_is_the_target_but_smaller(world: Path, tmp_path: Path, options: Options) -> None:
    run = DrafterRun(**options(layers=1, width=24, steps=3))
    drafter.train(run, tmp_path / "made", silent)
    config = load_model(str(tmp_path / "made")).config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (1, 24, 23)
    assert config.num_attention_heads == config.num_key_value_heads == 3 and config.tie_word_embeddings


@pytest.mark.parametrize("more", some([{}, {"hidden": 0}, {"labels": "overlap"}, {"labels": "chance"}], 2))
def test_disco(world: Path, tmp_path: Path, small: Options, more: dict[str, Any]) -> None:
    start = {"drafter": str(world / "drafter"), "rate": 0.01}
    out = tmp_path / "a+b"  # signs that mean something in the name of a policy
    found = classifier.train(ClassifierRun(**small(**start, **more)), out, silent)
    learnt(found)
    made = load(out / "model.safetensors", "disco")
    assert isinstance(made, Disco) and made.width == (2 if more == {"hidden": 0} else 32) and made.drafter
    complete(out)
    names_its_use(out, f"--policy 'disco?model={out}'")


@pytest.mark.parametrize("more", some([{}, {"shared": False, "blocks": 2, "labels": "agree"}], 2))
def test_specdecpp(world: Path, tmp_path: Path, small: Options, more: dict[str, Any]) -> None:
    start = {"kind": "specdecpp", "drafter": str(world / "drafter"), "keep": 0.0}
    found = classifier.train(ClassifierRun(**small(**start, **more)), tmp_path / "made", silent)
    learnt(found)
    made = load(tmp_path / "made" / "model.safetensors", "specdecpp")
    assert isinstance(made, SpecDecPlus) and made.width == 16
    assert (made.layers, made.repeat) == ((2, 1) if more else (3, 3))
    complete(tmp_path / "made")


@pytest.mark.parametrize("more", some([{"kind": "eagle"}, {}, {"drafted": 12}], 2))
def test_eagle(world: Path, tmp_path: Path, small: Options, more: dict[str, Any]) -> None:
    run = EagleRun(**small(dtype="float32", noise=0.0, share=1.0, **more))
    found = eagle.train(run, tmp_path / "made", silent)
    learnt(found)
    assert {"agreement 1", "agreement 2", "agreement 3"} <= found["log"][-1].keys()
    made = load_eagle(tmp_path / "made", load_model(str(world / "target")))
    assert isinstance(made, Eagle3) == ("kind" not in more)
    assert (made.ids is None) == ("drafted" not in more)
    if made.ids is not None:
        assert len(made.ids) == 12
    complete(tmp_path / "made")
    drafts(world, f"eagle:{tmp_path / 'made'}")


@pytest.mark.parametrize("more", some([{"kind": "eagle"}, {}], 2))
def test_eagle_goes_on_from_a_head(
    world: Path, tmp_path: Path, options: Options, more: dict[str, Any]
) -> None:
    plain = options(dtype="float32", licence="CC0-1.0", **more)
    first = eagle.train(EagleRun(**plain), tmp_path / "first", silent)
    run = EagleRun(**plain | {"start": str(tmp_path / "first"), "steps": 20})
    found = eagle.train(run, tmp_path / "second", silent)
    assert found["before"] == first["after"]
    where_it_ended = {key: value for key, value in first["log"][-1].items() if key.startswith("agreement")}
    assert {key: found["log"][0][key] for key in where_it_ended} == where_it_ended
    assert "| | before | after |" in (tmp_path / "second" / "README.md").read_text()
    assert found["log"][-1] != found["log"][0]


def test_a_task_is_told_how_much_of_its_training_is_over(
    world: Path, tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, progress = eagle.EagleTask.loss, list[float]()

    def recording(task: eagle.EagleTask, *args: Any) -> Any:
        progress.append(task.progress)
        return loss(task, *args)

    monkeypatch.setattr(eagle.EagleTask, "loss", recording)
    eagle.train(EagleRun(**options(steps=4)), tmp_path / "made", silent)
    assert progress == [0.0, 0.25, 0.5, 0.75]


def test_eagle_goes_on_with_fewer_tokens(world: Path, tmp_path: Path, options: Options) -> None:
    plain = options(dtype="float32")
    eagle.train(EagleRun(**plain, drafted=12), tmp_path / "first", silent)
    run = EagleRun(**plain | {"start": str(tmp_path / "first"), "drafted": 6, "steps": 5})
    eagle.train(run, tmp_path / "second", silent)
    made = load_eagle(tmp_path / "second", load_model(str(world / "target")))
    assert made.ids is not None and len(made.ids) == 6
    drafts(world, f"eagle:{tmp_path / 'second'}")


@pytest.mark.filterwarnings("ignore:head .* was made for")
def test_a_head_of_the_other_kind_is_no_start(world: Path, tmp_path: Path, options: Options) -> None:
    eagle.train(EagleRun(**options(kind="eagle", steps=1)), tmp_path / "first", silent)
    run = EagleRun(**options(start=str(tmp_path / "first"), steps=1))
    with pytest.raises(UserError, match="first is a head of the kind eagle: add --kind eagle"):
        eagle.train(run, tmp_path / "second", silent)
    folders.eagle3(tmp_path / "parallel", kind="peagle", layers="qwen3")
    run = EagleRun(**options(start=str(tmp_path / "parallel"), steps=1))
    with pytest.raises(UserError, match="parallel is a PEagle head: name one of EAGLE or EAGLE-3"):
        eagle.train(run, tmp_path / "third", silent)


@pytest.mark.parametrize("more", some([{}, {"tied": True, "heads": 2, "loss": "ce"}], 2))
def test_medusa(world: Path, tmp_path: Path, small: Options, more: dict[str, Any]) -> None:
    run = MedusaRun(**small(dtype="float32", **more))
    found = medusa.train(run, tmp_path / "made", silent)
    learnt(found)
    assert {"agreement 1", "agreement 2"} <= found["log"][-1].keys()
    made = load_medusa(tmp_path / "made", load_model(str(world / "target")))
    assert len(made.medusa_head) == (2 if more else 4) and made.tied == bool(more)
    complete(tmp_path / "made")
    drafts(world, f"medusa:{tmp_path / 'made'}")
    names_its_use(tmp_path / "made", f"--drafters medusa:{tmp_path / 'made'}")


def test_the_command_line_and_a_yaml_file_are_one(
    world: Path, tmp_path: Path, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(start=str(world / "drafter"), steps=2, measure_every=2)
    given |= {"data": list(given["data"]), "temperatures": "0,1.0"}
    hyphened = {key.replace("_", "-"): value for key, value in given.items()}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(hyphened | {"steps": 7}))
    by_file = ["--config", str(tmp_path / "run.yaml"), "--steps", "2", "--out", str(tmp_path / "a")]
    assert main(["train", "drafter", *by_file, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["steps"] == 2 and first["path"] == str(tmp_path / "a")
    words = ["--out", str(tmp_path / "b")]
    for key, value in hyphened.items():
        words += [f"--{key}", ",".join(value) if isinstance(value, list) else str(value)]
    assert main(["train", "drafter", *words]) == 0
    assert "mean_accepted" in capsys.readouterr().out
    a, b = ((tmp_path / x / "model.safetensors").read_bytes() for x in "ab")
    assert a == b
