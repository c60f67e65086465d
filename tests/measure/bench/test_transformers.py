"""Transformers' modes: each setting changes what is drafted in the installed version, and never the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from transformers.generation import candidate_generator, utils

from draftwise.data import spec_bench
from draftwise.measure.bench.contender import Generation, Item, Text
from draftwise.measure.bench.transformers import Transformers
from draftwise.models.load import load_model

from .fake import transformers as make

LAW = Generation(24)
EOS = frozenset([2])


@pytest.fixture(scope="module")
def assistant() -> Any:
    return load_model("zoo:general")


@pytest.fixture(scope="module")
def items(tokenizer: Any) -> list[Item]:
    """A translation, a story, and a text that repeats itself."""
    texts = [spec_bench()[80].text, spec_bench()[0].text, "Copy this: one two three four. " * 4]
    encoded = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in texts
    ]
    return [Item(i, i, "x", tuple(ids)) for i, ids in enumerate(encoded)]


@pytest.fixture(scope="module")
def plain(plain_model: Any, items: list[Item]) -> list[Text]:
    peer = make("plain", plain_model, eos=EOS)
    return [peer.decode([item], LAW)[0] for item in items]


@pytest.fixture(scope="module")
def reference(plain: list[Text]) -> list[tuple[int, ...]]:
    return [text.tokens for text in plain]


@contextmanager
def drafts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The length of every draft that an assistant makes."""
    lengths: list[int] = []
    real = candidate_generator.AssistedCandidateGenerator.get_candidates

    def noted(self: Any, input_ids: Any, **rest: Any) -> Any:
        out = real(self, input_ids, **rest)
        lengths.append(out[0].shape[1] - input_ids.shape[1])
        return out

    with monkeypatch.context() as patch:
        patch.setattr(candidate_generator.AssistedCandidateGenerator, "get_candidates", noted)
        yield lengths


def play(peer: Transformers, items: list[Item], reference: list[tuple[int, ...]]) -> tuple[int, int]:
    """Decode all prompts; gives passes and drafted tokens."""
    texts = [peer.decode([item], LAW)[0] for item in items]
    assert [text.tokens for text in texts] == reference
    assert all(text.ttft_s and 0 < text.ttft_s < text.seconds for text in texts)
    assert all(1 <= text.first_tokens < len(text.tokens) for text in texts)
    assert all(text.accepted == len(text.tokens) - text.rounds for text in texts)
    return sum(t.rounds for t in texts), sum(t.drafted for t in texts)


def test_plain_takes_one_pass_a_token(plain: list[Text]) -> None:
    for text in plain:
        assert (text.rounds, text.drafted, text.accepted) == (len(text.tokens), 0, 0)
        assert text.ttft_s and 0 < text.ttft_s < text.seconds and text.first_tokens == 1


def test_plain_in_a_batch_writes_the_same(plain_model: Any, items: list[Item], reference: Any) -> None:
    peer = make("plain", plain_model, eos=EOS)
    assert peer.max_batch == 0
    texts = peer.decode(items, LAW)
    assert [text.tokens for text in texts] == reference
    assert {text.ttft_s for text in texts} == {None}, "of a batch it is not known"


def test_what_the_targets_authors_have_set_is_not_decoded_by(
    plain_model: Any, items: list[Item], reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own policies do not either; a penalty gives another text, and takes time."""
    monkeypatch.setattr(plain_model.generation_config, "repetition_penalty", 1.8)
    peer = make("plain", plain_model, eos=EOS)
    assert [peer.decode([item], LAW)[0].tokens for item in items] == reference
    assert plain_model.generation_config.repetition_penalty == 1.8


def test_constant_length_is_live(
    plain_model: Any, assistant: Any, items: list[Item], reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in (2, 5):
        items, reference = items[:2], reference[:2]
        peer = make("constant", plain_model, assistant, length=length, eos=EOS)
        with drafts(monkeypatch) as lengths:
            _, drafted = play(peer, items, reference)
        assert drafted == sum(lengths)
        assert max(lengths) == length
        assert lengths.count(length) > 0.5 * len(lengths), "shorter only where a text ends"
    assert peer.max_batch == 1


def test_heuristic_is_live_and_kept_from_call_to_call(
    plain_model: Any, assistant: Any, items: list[Item], reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = assistant.generation_config.num_assistant_tokens
    peer = make("heuristic", plain_model, assistant, length=6, eos=EOS)
    with drafts(monkeypatch) as lengths:
        play(peer, items, reference)
    steps = {b - a for a, b in pairwise(lengths)}
    assert lengths[0] == 6
    assert {-1} <= steps and len(set(lengths)) > 3
    memory = peer.memory()
    assert memory["num_assistant_tokens"] != 6
    assert assistant.generation_config.num_assistant_tokens == before, "another mode does not see it"
    again = make("heuristic", plain_model, assistant, length=6, eos=EOS)
    again.restore(memory)
    with drafts(monkeypatch) as lengths:
        again.decode(items[:1], LAW)
    assert lengths[0] == memory["num_assistant_tokens"]
    again.warm(items[:1], LAW)
    assert again.memory() == {"num_assistant_tokens": 6}, "warming up is forgotten"


def test_confidence_threshold_is_live(
    plain_model: Any, assistant: Any, items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first draft, before anything is refitted, is the shorter the higher the threshold."""
    first = []
    modes: list[dict[str, Any]] = [
        {"kind": "threshold", "threshold": 0.99},
        {"kind": "threshold", "threshold": 0.05},
        {"kind": "constant", "length": 20},
    ]
    for mode in modes:
        peer = make(mode.pop("kind"), plain_model, assistant, eos=EOS, **mode)
        with drafts(monkeypatch) as lengths:
            peer.decode(items[:1], LAW)
        first.append(lengths[0])
    assert first[0] < first[1] <= first[2]


def test_the_threshold_is_refitted_while_decoding(
    plain_model: Any, assistant: Any, items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the assistant's own stopping criterion is given moves; without scikit-learn it would stay."""
    pytest.importorskip("sklearn")
    given: list[float] = []
    real = vars(utils)["ConfidenceCriteria"]

    class Noted(real):  # type: ignore[misc, valid-type]
        def __init__(self, assistant_confidence_threshold: float) -> None:
            given.append(float(assistant_confidence_threshold))
            super().__init__(assistant_confidence_threshold)

    monkeypatch.setattr(utils, "ConfidenceCriteria", Noted)
    make("threshold", plain_model, assistant, eos=EOS).decode([items[1]], LAW)
    assert given[0] == 0.4
    assert len(set(given)) > 1


def test_defaults_are_those_of_the_installed_version(
    plain_model: Any, assistant: Any, items: list[Item], reference: Any
) -> None:
    """In this version: at most 20 tokens, a constant schedule, and a threshold of 0.4."""
    defaults = assistant.generation_config._get_default_generation_params()
    assert defaults["num_assistant_tokens"] == 20
    assert defaults["num_assistant_tokens_schedule"] == "constant"
    assert defaults["assistant_confidence_threshold"] == 0.4
    peers = [make(kind, plain_model, assistant, eos=EOS) for kind in ("assisted", "threshold")]
    first, second = (play(peer, items[:1], reference[:1]) for peer in peers)
    assert first == second


def test_lookup_is_live(plain_model: Any, items: list[Item], reference: Any) -> None:
    found = {}
    for length, ngram in ((1, 2), (10, 2), (10, 6)):
        peer = make("lookup", plain_model, length=length, ngram=ngram, eos=EOS)
        found[length, ngram] = play(peer, items[1:], reference[1:])
    assert 0 < found[1, 2][1] < found[10, 2][1]
    assert found[10, 2][0] < sum(map(len, reference[1:])), "fewer passes than tokens"
    assert found[10, 6] != found[10, 2]


def test_drawn_texts_follow_the_prompts_seed(plain_model: Any, items: list[Item]) -> None:
    peer = make("plain", plain_model, eos=EOS)
    one, two = (peer.decode([items[1]], Generation(20, 1.0, seed=3))[0].tokens for _ in range(2))
    other = peer.decode([items[1]], Generation(20, 1.0, seed=4))[0].tokens
    assert one == two != other
