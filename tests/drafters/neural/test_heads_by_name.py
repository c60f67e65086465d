"""Heads as users name them, on the bundled target: the text is the target's, whatever the head is worth."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwise import Decoder
from draftwise.build import build_drafters
from draftwise.errors import UserError
from draftwise.measure.trace.record import record
from draftwise.models.compiled.blueprint import Unfit
from draftwise.models.heads.eagle import Eagle3, new_eagle
from draftwise.models.heads.medusa import new_medusa
from draftwise.models.runner.executors import inductor_cpu
from draftwise.models.weights import timing
from draftwise.specs import parse_drafters
from draftwise.targets.hf import HFTarget
from draftwise.testing.target import SimTarget
from tests.exactness.test_exact_hf import distribution_of
from tests.tiny import model

GREEDY: Any = SimpleNamespace(greedy=True)  # all that is asked of a header before drafters are refused
PROMPT = "Translate German to English: Ein Hund läuft am Strand."


@pytest.fixture(scope="module")
def heads(plain_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("heads")
    torch.manual_seed(0)
    new_eagle(plain_model).save(folder / "eagle")
    narrow = new_eagle(plain_model, eagle3=True, drafted=500)
    assert isinstance(narrow, Eagle3)
    narrow.choose(range(0, 1000, 2))
    narrow.save(folder / "eagle3")
    new_medusa(plain_model, heads=3, tied=True).save(folder / "medusa")
    return folder


@pytest.mark.parametrize(
    "policy", ["static-3", "random?arms=drafters*lengths&lengths=0,1,3", "hedgespec?length=2"]
)
def test_greedy_text_is_the_targets(heads: Path, tokenizer: Any, plain_model: Any, policy: str) -> None:
    names = [
        f"eagle:{heads / 'eagle'}",
        f"eagle:{heads / 'eagle'}?width=4&top=4",
        f"eagle:{heads / 'eagle3'}?width=3&gain=0.1",
        f"medusa:{heads / 'medusa'}?width=4&tree=fixed",
        f"medusa:{heads / 'medusa'}?rescore=0.5",
        "early-exit?layers=6&width=2",
        "lookahead?width=4&n=3",
        "ngram",
    ]
    decoder = Decoder.from_pretrained(plain_model, tokenizer=tokenizer, drafters=names, policy=policy)
    ids = torch.tensor([decoder.encode(PROMPT)])
    own = plain_model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    texts = decoder.generate_many([PROMPT, "SELECT", PROMPT], batch=2, max_new_tokens=24)
    assert texts[0].token_ids == texts[2].token_ids == own[0, ids.shape[1] :].tolist()
    assert not any(decoder.loop.faults.values()), decoder.loop.faults
    head = decoder.loop.pool.drafters[names[0]]
    assert head.runner.dtype == torch.bfloat16  # type: ignore[attr-defined]


def test_weights_are_packed_for_the_passes_of_their_kind(
    heads: Path, tokenizer: Any, plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a head for a step of a draft, those of a model for drafts as well."""
    asked_for: dict[str, set[Any]] = {}
    for name in (f"eagle:{heads / 'eagle3'}", f"medusa:{heads / 'medusa'}", "zoo:general"):
        seen = asked_for[name.partition(":")[0]] = set()

        def first(layers: Any, names: Any, widths: Any, seen: set[Any] = seen) -> str:
            seen.add(widths)
            return str(names[0])

        monkeypatch.setattr(timing, "fastest", first)
        build_drafters(parse_drafters(name), HFTarget(plain_model), tokenizer, "target")
    assert asked_for == {"eagle": {timing.DRAFTING}, "medusa": {timing.DRAFTING}, "zoo": {timing.WIDTHS}}


def test_an_engine_without_hidden_states_is_refused() -> None:
    target = SimTarget(distribution_of(model("llama")), 23)
    with pytest.raises(
        UserError,
        match=r"early-exit: it needs the target's hidden states.*SimTarget.*leave it out, or use it",
    ):
        build_drafters(parse_drafters("early-exit"), target, None, "sim")


def test_a_trace_refuses_what_it_cannot_hold(plain_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    cases = {"early-exit": "hidden states", "lookahead?width=2": "chains"}
    for names, said in (cases | {"ngram,suffix,cascade:ngram>suffix": "it drafts with the others"}).items():
        drafters = names.split(",")
        decoder = Decoder.from_pretrained(plain_model, tokenizer=tokenizer, drafters=drafters)
        with pytest.raises(UserError, match=said):
            record(decoder.loop.target, decoder.loop.pool.drafters, [], tmp_path / "t", GREEDY)
    assert not (tmp_path / "t").exists()


def test_the_target_is_compiled_once_with_the_hidden_states_of_its_heads(
    heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, ...]]()

    def blueprint(runner: Any) -> None:
        asked.append(runner.layers)
        raise Unfit("this is a test")

    monkeypatch.delenv("DRAFTWISE_COMPILE", raising=False)
    monkeypatch.setattr(inductor_cpu, "plan_of", blueprint)
    named: Any = {"drafters": f"eagle:{heads / 'eagle3'}", "policy": "static-2"}
    decoder = Decoder.from_pretrained("zoo:target", **named, pack=False, compile="kept")
    target: Any = decoder.loop.target
    assert target.runner.layers and asked.count(target.runner.layers) == 1 and () not in asked
