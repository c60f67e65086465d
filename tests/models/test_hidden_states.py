"""The hidden states that a target hands to drafters are those of the text, whatever happened to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone
from tests.drafters.neural.heads import features
from tests.effort import some
from tests.targets.test_hf import prompts
from tests.targets.test_trees import ARMS, team
from tests.tiny import model, own_text

LONG = [(7 * i) % 19 + 2 for i in range(40)]  # a prompt that another text can share
NAMES = ["llama", "gpt2", "gpt-neox", "qwen3-window", "gemma3-window", "mistral"]


def right(reads: HFTarget, made: Any, request: Any, layers: tuple[int, ...]) -> None:
    tap = reads.hidden_states(layers)
    n = len(request.tokens) - 1
    assert tap.length(request.id) == n
    wanted = features(made, torch.tensor([request.tokens]), layers)[0, :n]
    torch.testing.assert_close(tap.of(request.id, 0, n), wanted, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(("name", "together"), some([*((name, True) for name in NAMES), ("llama", False)], 2))
def test_features_are_those_of_reading_the_text(name: str, together: bool) -> None:
    """Prompts in pieces, chains and trees, rejections, texts that join and leave a ragged batch.

    So they are where each text of the batch is read in a pass of its own.
    """
    made = model(name)
    truth = {tuple(p): own_text(made, p, 30) for p in prompts()}
    reads = HFTarget(made, chunk=8)
    reads.runner.together = together
    taps = [(-1,), (0, 1, -1)]
    for layers in taps:
        assert reads.hidden_states(layers) is reads.hidden_states(layers)
    policy = Anyone(ARMS)
    loop = Loop(reads, team(truth), policy, policy)
    waiting = prompts()
    accepted = 0
    while waiting or loop.open:
        if waiting and len(loop.open) < 3:
            loop.add(waiting.pop(0), Sampling(max_new_tokens=30))
        requests = list(loop.open.values())
        accepted += sum(r.accepted for r in loop.step())
        for request in requests:
            if not request.done:
                for layers in taps:
                    right(reads, made, request, layers)
    assert accepted > 40
    assert reads.hidden_states((-1,)).length(0) == 0, "closed texts are forgotten"


def test_samples_of_one_prompt_share_what_was_read_of_it() -> None:
    made = model("llama")
    reads = HFTarget(made, chunk=8)
    reads.hidden_states((-1,))
    policy = Anyone(ARMS)
    loop = Loop(reads, team({}), policy, policy)
    requests = [loop.add(LONG, Sampling(max_new_tokens=9, temperature=1.0, seed=i)) for i in range(2)]
    loop.step()
    requests.append(loop.add([*LONG, 5, 6], Sampling(max_new_tokens=9, temperature=1.0, seed=9)))
    for _ in range(2):
        loop.step()
        for request in requests:
            if not request.done:
                right(reads, made, request, (-1,))


def test_a_conversation_goes_on() -> None:
    made = model("llama")
    reads = HFTarget(made, chunk=8)
    reads.hidden_states((1, -1))
    policy = Anyone(ARMS)
    loop = Loop(reads, team({}), policy, policy)
    request = loop.add([3, 4, 5], Sampling(max_new_tokens=9), keep=True)
    while loop.open:
        loop.step()
    loop.extend(request, list(range(2, 22)), Sampling(max_new_tokens=9))
    loop.step()
    right(reads, made, request, (1, -1))


def test_nobody_asks_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama")
    reads = HFTarget(made)
    monkeypatch.setattr(HFTarget, "_record", None)  # calling it would raise
    policy = Anyone(ARMS)
    loop = Loop(reads, team({}), policy, policy)
    list(loop.run(prompts(), Sampling(max_new_tokens=9), batch=2))
    body = made.get_decoder()
    assert not reads.recorded and not body._forward_hooks and not body.layers[0]._forward_pre_hooks


def test_a_text_that_was_open_before_anyone_asked_is_written_all_the_same() -> None:
    made = model("llama")
    reads = HFTarget(made, chunk=8)
    policy = Anyone(ARMS)
    loop = Loop(reads, team({}), policy, policy)
    before = loop.add(LONG, Sampling(max_new_tokens=12))
    loop.step()
    tap = reads.hidden_states((-1,))
    after = [loop.add(prompt, Sampling(max_new_tokens=12)) for prompt in ([6, 7, 8], [*LONG, 6])]
    loop.step()
    loop.step()
    assert tap.length(before.id) == 0
    right(reads, made, after[0], (-1,))
    assert after[1].reused == len(LONG), "what was read of it is shared all the same"


def test_layers_that_are_not_there_are_refused() -> None:
    reads = HFTarget(model("llama"))
    with pytest.raises(UserError, match="layer 7: this target has the layers 0 to 1"):
        reads.hidden_states((0, 7))
