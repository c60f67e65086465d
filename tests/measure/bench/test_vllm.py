"""vLLM as a peer: what its process is asked for, and what it answers, with a vLLM that only counts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from draftwise import UserError
from draftwise.measure.bench import peers as module
from draftwise.measure.bench.peers import Peers, Unavailable
from draftwise.measure.bench.vllm import load
from draftwise.models.load import resolve

from .conftest import sim_models


def made(drafters: Sequence[str]) -> Peers:
    return Peers(sim_models(), "zoo:target", drafters, {"dtype": "float32"})


def test_each_mode_says_it_in_vllms_words(hellos: list[Mapping[str, Any]]) -> None:
    peers = made(["ngram", "zoo:general"])
    for name in ("plain", "ngram?length=3&max=6", "suffix", "draft?length=2", "draft?drafter=zoo:code"):
        peers.build(f"vllm:{name}")
    plain, ngram, suffix, draft, code = [told["speculative"] for told in hellos]
    assert {told["module"] for told in hellos} == {"draftwise.measure.bench.vllm"}
    assert plain is None and [told["drafts"] for told in hellos] == [False, True, True, True, True]
    assert ngram == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 6,
    }
    assert suffix["method"] == "suffix"
    assert (draft["num_speculative_tokens"], draft["model"]) == (2, resolve("zoo:general"))
    assert code["model"] == resolve("zoo:code")
    assert hellos[0]["model"] == resolve("zoo:target") and hellos[0]["dtype"] == "float32"
    peers.close()


@pytest.mark.parametrize(("gpu", "dtype", "memory"), [("", "float32", 0.3), ("an H100", "auto", 0.18)])
def test_weights_are_float32_where_there_is_no_gpu_whose_memory_is_shared(
    gpu: str, dtype: str, memory: float, hellos: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM starts only where its share is free; by itself it takes nine tenths."""
    monkeypatch.setattr(module, "describe", lambda: {"gpu": gpu, "threads": 2})
    peers = Peers(sim_models(), "zoo:target", [], {"dtype": "auto"}, engines=4)
    peers.build("vllm:plain")
    peers.close()
    assert (hellos[0]["dtype"], hellos[0]["memory"]) == (dtype, pytest.approx(memory))


def test_a_draft_model_must_be_there_and_options_are_checked(hellos: list[Mapping[str, Any]]) -> None:
    peers = made(["ngram"])
    with pytest.raises(Unavailable, match="draft model"):
        peers.build("vllm:draft")
    with pytest.raises(UserError, match="vllm:ngram"):
        peers.build("vllm:ngram?drafter=zoo:code")
    assert not hellos
    peers.close()


class Counting:
    """An engine whose text counts up from the prompt, two tokens a step, one of which was drafted."""

    def __init__(self, model: str, **options: Any) -> None:
        self.options, self.llm_engine = options, self
        self.steps = 0

    def add_request(self, name: str, prompt: Mapping[str, Any], sampling: Any) -> None:
        self.text, self.most = [prompt["prompt_token_ids"][-1]], sampling.max_tokens

    def has_unfinished_requests(self) -> bool:
        return bool(len(self.text) <= self.most)

    def step(self) -> list[Any]:
        self.steps += 1
        self.text += [self.text[-1] + 1, self.text[-1] + 2]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=self.text[1:])])]

    def get_metrics(self) -> list[Any]:
        drafted = SimpleNamespace(name="vllm:spec_decode_num_draft_tokens", value=3 * self.steps)
        return [drafted, SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens", value=self.steps)]


def test_a_text_comes_with_its_rounds_and_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    vllm = SimpleNamespace(LLM=Counting, SamplingParams=SimpleNamespace, __version__="0.1")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    hello = {"model": "m", "dtype": "float32", "context": 99, "threads": 2, "memory": 0.2}
    write, settings = load(hello | {"speculative": None})
    assert settings == {"vllm": "0.1"}
    generation = {"ids": [4], "max_new_tokens": 4, "temperature": 0.0, "seed": 1, "eos": [2]}
    for _ in range(2):
        told = write(generation)
        assert (told["tokens"], told["rounds"], told["drafted"]) == ([5, 6, 7, 8], 2, 6)
        assert told["accepted"] == 2, "of this text alone"
        assert told["seconds"] > told["ttft_s"] > 0.0
