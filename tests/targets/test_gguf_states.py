"""GGUF models with a state for each text: taken back where llama.cpp can, else decoded without drafts."""

from __future__ import annotations

from random import Random

import pytest

from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.gguf import gguf as drafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.gguf import sequences
from draftwise.targets.gguf import gguf
from tests.core.turns import group_tokens, loop_with, written
from tests.gguf import stateful
from tests.targets.test_gguf import Noise, check_uncommitted, own, prompts, team
from tests.targets.test_hf import Oracle
from tests.tiny import VOCAB

N = 30
POLICIES = ["none", "static-5?drafter=oracle", "random?arms=drafters*lengths&lengths=0,1,4,20"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_hybrid_models_text_is_llama_cpps_own(policy: str, batch: int) -> None:
    path, texts = stateful("lfm2"), prompts()
    loop = loop_with(gguf(path), team(path, texts, N), policy)
    rounds = list(loop.run(texts, Sampling(max_new_tokens=N), batch=batch))
    assert not any(r.fault or r.error for r in rounds)
    assert {(r.accepted > 0, r.accepted < r.drafted) for r in rounds} > {(True, True)} or policy == "none"
    assert max(r.drafted for r in rounds) <= 16
    loop = loop_with(gguf(path), team(path, texts, N), policy)
    assert written(loop, texts, N, batch) == own(path, texts, N)


def test_states_are_read_again_where_the_memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "FIRST_CELLS", 512)
    path = stateful("lfm2")
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(150)] for i in range(6)]
    loop = loop_with(gguf(path), team(path, texts, N), "static-4?drafter=oracle")
    requests = [loop.add(texts[0], Sampling(max_new_tokens=N))]
    for _ in range(3):
        loop.step()
    requests += [loop.add(text, Sampling(max_new_tokens=N)) for text in texts[1:]]
    while loop.open:
        assert not any(r.error for r in loop.step())
    assert [r.tokens[150:] for r in requests] == own(path, texts, N)


def test_a_pass_that_was_never_committed_is_read_again() -> None:
    check_uncommitted(stateful("lfm2"))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_recurrent_model_is_decoded_without_drafts(batch: int) -> None:
    path, texts = stateful("mamba"), prompts()
    with pytest.warns(DraftwiseWarning, match="without drafts"):
        target = gguf(path)
    truth = {tuple(p): text for p, text in zip(texts, own(path, texts, N), strict=True)}
    loop = loop_with(target, {"oracle": Oracle(truth, 0.0), "noise": Noise()}, "static-5?drafter=oracle")
    rounds = list(loop.run(texts, Sampling(max_new_tokens=N), batch=batch))
    assert not any(r.drafted for r in rounds)
    assert group_tokens(rounds) == list(truth.values())


@pytest.mark.parametrize("kind", ["lfm2", "mamba"])
def test_a_model_with_a_state_cannot_draft(kind: str) -> None:
    with pytest.raises(UserError, match="name another drafter"):
        drafter(stateful(kind), VOCAB)
