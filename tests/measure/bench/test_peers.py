from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwise import UserError
from draftwise.measure.bench import transformers as modes
from draftwise.measure.bench.peers import ENGINES, Peers, Unavailable, names, read_options

from .conftest import sim_models


class Model:
    def __init__(self, name: str) -> None:
        self.name, self.generation_config = name, {"of": name}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Peers over models that are only names, with how often each was loaded."""
    loaded: list[str] = []

    def load(name: str, *, dtype: str = "auto") -> Model:
        loaded.append(name)
        return Model(name)

    class Config(dict[str, Any]):
        def __setattr__(self, key: str, value: Any) -> None:
            self[key] = value

    monkeypatch.setattr("draftwise.models.load.load_model", load)
    monkeypatch.setattr(modes, "deepcopy", Config)
    made = Peers(sim_models(), "zoo:target", ["ngram", "zoo:general", "zoo:code"], {"compile": "on"})
    yield made, loaded
    made.close()


def test_names_stand_for_modes() -> None:
    assert names("") == []
    assert names("transformers") == [f"transformers:{mode}" for mode in ENGINES["transformers"]]
    assert names("transformers:plain, transformers") == names("transformers")
    assert len(names("all")) == sum(map(len, ENGINES.values()))
    assert names("transformers:constant?length=3,vllm:ngram") == [
        "transformers:constant?length=3",
        "vllm:ngram",
    ]
    with pytest.raises(UserError, match="no peer 'transformers:eagle': choose from transformers:plain"):
        names("transformers:eagle")
    with pytest.raises(UserError, match="length=0: give a positive number"):
        names("vllm:ngram?length=0")
    assert names("llamacpp:plain?gpu_layers=0") == ["llamacpp:plain?gpu_layers=0"], "a default is allowed"


def test_models_are_loaded_once_and_options_reach_them(peers: Any) -> None:
    made, loaded = peers
    one = made.build("transformers:constant?length=3")
    two = made.build("transformers:threshold?threshold=0.7&drafter=zoo:code")
    again = made.build("transformers:heuristic")
    assert (one.assistant.name, two.assistant.name, again.assistant.name) == (
        "zoo:general",
        "zoo:code",
        "zoo:general",
    )
    assert sorted(loaded) == ["zoo:code", "zoo:general", "zoo:target"]
    assert one.config["num_assistant_tokens"] == 3
    assert one.config["assistant_confidence_threshold"] == 0.0
    assert two.config["assistant_confidence_threshold"] == 0.7
    assert again.config["num_assistant_tokens_schedule"] == "heuristic"
    assert one.assistant.generation_config == {"of": "zoo:general"}, "the model keeps its own settings"


def test_packed_is_our_own_model(peers: Any) -> None:
    made, loaded = peers
    assert made.build("transformers:plain?packed=true").model is made.models.model
    assert loaded == []
    assert made.build("transformers:plain").model.name == "zoo:target"


def test_without_a_model_among_the_drafters_there_is_no_assistant() -> None:
    made = Peers(sim_models(), "zoo:target", ["ngram", "suffix?history=100"], {})
    made.__dict__["unpacked"] = Model("zoo:target")
    with pytest.raises(Unavailable, match="no assistant: name a model among the drafters"):
        made.build("transformers:assisted")
    made.close()


@pytest.mark.parametrize(
    "name, said",
    [
        ("transformers:constant?size=3", "has no option 'size': choose from length, drafter, packed"),
        ("transformers:constant?length=x", "length=x is not int"),
        ("transformers:lookup?ngram=0", "ngram=0: give a positive number"),
        ("transformers:plain?packed=maybe", "packed=maybe: write true or false"),
        ("transformers:assisted?drafter=ngram", "drafter=ngram: no draft model of a peer"),
    ],
)
def test_wrong_options_are_named(peers: Any, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        peers[0].build(name)


def test_every_default_may_be_given() -> None:
    for mode, defaults in ((mode, ENGINES[engine][mode]) for engine in ENGINES for mode in ENGINES[engine]):
        usual = read_options(mode, defaults, {})
        assert read_options(mode, defaults, {name: str(value) for name, value in usual.items()}) == usual


def test_beside_a_gguf_target_the_peers_are_llamacpps(hellos: list[Any]) -> None:
    made = Peers(sim_models(), "gguf:big.gguf?threads=2", ["small.gguf"], {}, longest=5000)
    for name in ("transformers:plain", "transformers:compiled", "vllm:plain"):
        with pytest.raises(Unavailable, match="not given GGUF files"):
            made.build(name)
    made.build("llamacpp:plain?cache=f32&flash=off")
    made.build("llamacpp:draft?length=4&confidence=0")
    made.build("llamacpp:draft?drafter=other.gguf")
    assert {hello["file"] for hello in hellos} == {str(Path("big.gguf").absolute())}
    assert (hellos[0]["cache"], hellos[0]["flash"], hellos[0]["loop"]) == ("f32", "off", "fast")
    assert hellos[0]["context"] == 5000, "room for the longest text of the run"
    assert [Path(hello.get("draft", "")).name for hello in hellos] == ["", "small.gguf", "other.gguf"]
    assert (hellos[1]["length"], hellos[1]["confidence"]) == (4, 0.0)
    with pytest.raises(UserError, match="flash=maybe: choose from auto, on, off"):
        made.build("llamacpp:plain?flash=maybe")
    made.close()
