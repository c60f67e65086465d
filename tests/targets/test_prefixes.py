"""Texts that begin as earlier ones did: what was read is not read again, and nothing but that changes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwise.core.drafts import Draft
from draftwise.core.loop import Loop
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning
from draftwise.models.runner import PassInput, PassOutput
from draftwise.models.runner.prefix_cache import keep_prefixes
from draftwise.targets.hf import HFTarget
from draftwise.testing import p_value
from tests.core.turns import decode_all, group_tokens, loop_with, written
from tests.drafters.neural import test_eagle as eagles
from tests.effort import drawn, some
from tests.models import test_positions as positions
from tests.models import test_windows as windows
from tests.targets import test_hybrids as hybrids
from tests.tiny import CONFIGS, VOCAB, lively, model, own_text, random_texts

POLICY = "random?arms=drafters*lengths&lengths=0,1,4"


def begun(first: Sequence[int], text: Sequence[int], more: Sequence[int]) -> list[list[int]]:
    """Prompts that begin as `first` did, whose answer was `text`: another question, a new turn, all of it."""
    whole = [*first, *text]
    return [[*first[:-4], *more], [*whole, *more], whole[: len(first) + 3], [*whole, *more, *more]]


def looped(target: HFTarget, team: dict[str, Any], *, mebibytes: float = 1.0) -> Loop:
    keep_prefixes([target, *team.values()], mebibytes)
    return loop_with(target, team, POLICY if team else "none")


class Fed:
    """Counts the tokens that a runner reads."""

    def __init__(self, runner: Any) -> None:
        self.tokens, self.forward = 0, runner.forward
        runner.forward = self

    def __call__(self, given: PassInput) -> PassOutput:
        self.tokens += sum(map(len, given.tokens))
        output: PassOutput = self.forward(given)
        return output


@pytest.mark.parametrize("name", some([name for name in CONFIGS if name != "gemma2-window"], 4))
def test_greedy_text_is_the_models_own(name: str) -> None:
    made = model(name)
    (first, more) = random_texts((30, 5))
    own = own_text(made, first, 12)
    prompts = begun(first, own, more)
    truth = [own_text(made, prompt, 12) for prompt in prompts]
    team = {
        "self": LMDrafter(made, VOCAB),
        "bad": LMDrafter(model(name, seed=1), VOCAB),
        "ngram": NgramDrafter(),
    }
    target = HFTarget(made, chunk=8)
    loop = looped(target, team)
    assert written(loop, [first], 12, 1) == [own]
    for batch in (1, 3):
        assert written(loop, prompts, 12, batch) == truth
    assert target.runner.request_ids == [] and not target.info.reused


def test_a_beginning_is_read_once() -> None:
    made = model("llama")
    target, drafter = HFTarget(made, chunk=8), LMDrafter(made, VOCAB)
    keep_prefixes([target, drafter], 1)
    loop = loop_with(target, {"self": drafter}, "static-1")
    (first, more) = random_texts((40, 5))
    fed = [Fed(target.runner), Fed(drafter.runner)]
    (text,) = written(loop, [first], 4, 1)
    assert all(one.tokens > 40 for one in fed)
    for prompt in begun(first, text, more):
        for one in fed:
            one.tokens = 0
        written(loop, [prompt], 4, 1)
        assert all(1 <= one.tokens <= 4 + 10 + 4 * 2 for one in fed), "the beginning was read again"


def test_a_beginning_is_restored_where_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.models.runner.cache.KEPT", 0)
    made = model("deepseek-sparse")  # keeps more than keys and values
    loop = looped(HFTarget(made), {})
    (first, more) = random_texts((30, 5))
    for prompt in (first, [*first, *more]):
        assert written(loop, [prompt], 12, 1) == [own_text(made, prompt, 12)]


@pytest.mark.parametrize("name", some(positions.CONFIGS, 2))
def test_other_frequencies_are_other_keys(name: str) -> None:
    """A beginning is taken over only where it was read with the same rotary frequencies."""
    made = positions.model(name)
    loop = looped(HFTarget(made, chunk=8), {"ngram": NgramDrafter(), "self": LMDrafter(made, VOCAB)})
    (first, more) = random_texts((20, 6))
    text = positions.own_text(made, first, 20)
    assert written(loop, [first], 20, 1) == [text]
    for prompt in [*begun(first, text, more), *begun(first, text, more)[::-1]]:
        assert written(loop, [prompt], 12, 1) == [positions.own_text(made, prompt, 12)]


def test_a_prompt_that_sees_more_than_an_answer_does() -> None:
    """The class ignores the window and its cache does not: what was read as an answer is no prompt."""
    made = windows.model("Llama", sliding_window=windows.WINDOW)
    target = HFTarget(made, chunk=8)
    loop = looped(target, {})
    (first, more) = random_texts((windows.WINDOW + 22, 6))
    text = own_text(made, first, 20)
    assert written(loop, [first], 20, 1) == [text]
    took = []
    for prompt in begun(first, text, more):
        request = loop.add(prompt, Sampling(max_new_tokens=12))
        loop.step()
        took.append(request.reused)
        decode_all(loop)
        assert request.tokens[len(prompt) :] == own_text(made, prompt, 12)
    assert 16 < max(took[:2]) <= len(first)


def test_it_is_told_what_was_taken_over() -> None:
    made = model("llama")
    target = HFTarget(made)
    loop = looped(target, {})
    (first,) = random_texts((40,))
    written(loop, [first], 5, 1)
    one = loop.add([*first, 3, 4], Sampling(max_new_tokens=3))
    other = loop.add(first[:30], Sampling(max_new_tokens=3))
    short = loop.add(first[:9], Sampling(max_new_tokens=3))
    loop.step()
    assert [request.reused for request in (one, other, short)] == [40, 29, 0]


def test_the_bound_holds_over_many_texts() -> None:
    made, bad = model("llama"), LMDrafter(model("llama", seed=1), VOCAB)
    target = HFTarget(made)
    loop = looped(target, {"bad": bad}, mebibytes=1 / 16)
    prompts = random_texts([40] * 14)
    own = [own_text(made, prompt, 4) for prompt in prompts]
    assert target.prefixes is not None and bad.prefixes is not None
    whole = target.prefixes.memory
    assert whole is bad.prefixes.memory, "one bound for all models"
    for prompt, truth in zip(prompts, own, strict=True):
        assert written(loop, [prompt], 4, 1) == [truth]
        assert whole.bytes <= whole.limit == 1 << 16
    assert 1 < len(whole.nodes) < 14
    kept = [sum(n for _, n in target.prefixes.find(prompt)) == 40 for prompt in prompts]
    assert kept == sorted(kept) and kept[-1] and not kept[0], "the oldest go first"


class Broken:
    """A logits processor that fails after some tokens."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] > 44:
            raise ValueError("broken")
        return scores


def test_a_text_that_fails_leaves_nothing_behind() -> None:
    made = model("llama")
    target = HFTarget(made)
    loop = looped(target, {"bad": LMDrafter(model("llama", seed=1), VOCAB)})
    (first,) = random_texts((40,))
    failing = loop.add(first, Sampling(max_new_tokens=20, processors=(Broken(),)))
    sound = loop.add(first[:-2], Sampling(max_new_tokens=20))
    decode_all(loop)
    assert failing.finish_reason == "error" and target.prefixes is not None
    assert sum(n for _, n in target.prefixes.find(first)) == 38, "only what the other one had read"
    assert sound.tokens[38:] == own_text(made, first[:-2], 20)
    assert written(loop, [first], 12, 1) == [own_text(made, first, 12)]


def test_a_pass_that_fails_between_leaves_only_what_was_committed() -> None:
    """A text that is closed with a pass that was never committed: the guesses in its row are not kept."""
    made = model("llama")
    target = HFTarget(made)
    loop = looped(target, {"bad": LMDrafter(model("llama", seed=1), VOCAB)})
    (first,) = random_texts((40,))
    request = loop.add(first, Sampling(max_new_tokens=20))
    loop.step()
    target.verify([(request, Draft.chain([9, 9, 9]))])
    held = len(request.tokens) - 1
    loop.close(request)
    assert target.prefixes is not None
    assert sum(n for _, n in target.prefixes.find([*request.tokens, 9, 9, 9])) == held
    prompt = [*request.tokens, 5]
    assert written(loop, [prompt], 8, 1) == [own_text(made, prompt, 8)]


def test_the_law_of_sampled_texts_stays() -> None:
    made = model("llama", scale=3.0)
    team = {"good": LMDrafter(made, VOCAB), "bad": LMDrafter(model("llama", seed=1), VOCAB)}
    (prompt,) = random_texts((24,))
    loop = looped(HFTarget(made), team)
    found: dict[tuple[int, ...], int] = {}
    n = drawn(900)
    for _ in range(n // 4):
        requests = [loop.add(prompt, Sampling(max_new_tokens=2, temperature=1.0)) for _ in range(4)]
        decode_all(loop)
        for request in requests:
            text = tuple(request.tokens[24:])
            found[text] = found.get(text, 0) + 1
    with torch.inference_mode():
        heads = torch.tensor([[*prompt, token] for token in range(VOCAB)])
        logits = made(heads).logits
        first, second = logits[0, 23].softmax(-1), logits[:, 24].softmax(-1)
    law: dict[tuple[int, ...], float] = {
        (a, b): float(first[a] * second[a, b]) for a in range(VOCAB) for b in range(VOCAB)
    }
    assert p_value(found, law) > 1e-4


def test_states_of_drafters_come_along() -> None:
    """A head that reads the target's hidden states drafts after a beginning that was taken over."""
    made, bad = model("llama"), eagles.bad("eagle")
    target = HFTarget(made)
    team = {"eagle": EagleDrafter(bad, target)}
    keep_prefixes([target, *team.values()], 1)
    loop = loop_with(target, team, "static-3")
    (first,) = random_texts((40,))
    truth = own_text(made, first, 8)
    for _ in range(2):
        rounds = list(loop.run([first], Sampling(max_new_tokens=8)))
        assert group_tokens(rounds) == [truth]
        assert [round.drafted > 0 for round in rounds[:-1]] == [False] + [True] * (len(rounds) - 2)
    assert target.prefixes is not None and sum(n for _, n in target.prefixes.find(first)) == 40


def test_who_keeps_nothing() -> None:
    """Models with states, drafters with a window, whose rows are no beginnings; and all without memory."""
    state = HFTarget(hybrids.model(hybrids.KINDS[0]))
    whole, part = (LMDrafter(model("llama"), VOCAB, window=w) for w in (0, 8))
    keep_prefixes([state, whole, part, NgramDrafter()], 1)
    assert whole.prefixes is not None and state.prefixes is None is part.prefixes
    target = HFTarget(model("llama"))
    keep_prefixes([target], 0)
    assert target.prefixes is None


@pytest.mark.parametrize("strict", [False, True])
def test_a_text_whose_prefix_cannot_be_kept_is_whole_and_leaves_no_row(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where warnings are errors, they reach the caller."""
    made, rounds = model("llama"), list[Round]()
    target, drafter = HFTarget(made, chunk=8), LMDrafter(made, VOCAB)
    loop, (first,) = looped(target, {"self": drafter}), random_texts((40,))
    with monkeypatch.context() as patch:

        def fail(*given: object) -> None:
            raise MemoryError

        text = "the prefix of a text is not kept: MemoryError"
        patch.setattr("draftwise.models.runner.prefix_cache.copy_parts", fail)
        with warnings.catch_warnings():
            warnings.simplefilter("error" if strict else "always")
            with pytest.raises(DraftwiseWarning, match=text) if strict else pytest.warns(match=text):
                rounds += loop.run([first], Sampling(max_new_tokens=4))
    assert target.runner.request_ids == drafter.runner.request_ids == [] and not loop.open
    assert strict or group_tokens(rounds) == [own_text(made, first, 4)]
    assert loop.faults["self"] == strict, "a prefix that is not kept is no fault of the drafter"
    again = group_tokens(list(loop.run([first], Sampling(max_new_tokens=12))))
    assert again == [own_text(made, first, 12)]


class Adapted(torch.nn.Linear):
    """A linear layer with an adapter, which is switched as PEFT's are."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=False, dtype=inner.weight.dtype)
        self.weight, self._active_adapter = inner.weight, list[str]()
        self.more = torch.nn.Parameter(torch.randn_like(inner.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = torch.nn.functional.linear(x, self.more) if self._active_adapter else 0.0
        return super().forward(x) + more


def change(made: Any, way: str) -> None:
    weight = made.model.layers[0].mlp.up_proj.weight
    if way == "adapter":
        made.model.layers[0].mlp.up_proj._active_adapter = ["one"]
    elif way == "in place":
        with torch.no_grad():
            weight.mul_(-2)
    elif way == "another tensor":
        weight.data = -2 * weight.data
    else:  # as an average of weights is swapped in
        for parameter in made.parameters():
            parameter.data.mul_(1.5)


def answer(loop: Loop, request: Any) -> list[int]:
    while not request.done:
        loop.step([request])
    return list(request.tokens[request.prompt_length :])


@pytest.mark.parametrize("way", ["adapter", "in place", "another tensor", "data"])
def test_other_weights_are_other_keys(way: str) -> None:
    """A prefix, an open text, and a conversation are read again; what is read then is kept."""
    made = lively(CONFIGS["llama"]())
    made.model.layers[0].mlp.up_proj = Adapted(made.model.layers[0].mlp.up_proj)
    target, settings = HFTarget(made, chunk=8), Sampling(max_new_tokens=12)
    loop = looped(target, {"self": LMDrafter(made, VOCAB), "ngram": NgramDrafter()})
    first, more, other = random_texts((40, 5, 30))
    own = own_text(made, first, 12)
    talk, begun = loop.add(first, settings, keep=True), loop.add(other, settings)
    assert answer(loop, talk) == own == answer(loop, loop.add(first, settings))
    loop.step([begun])
    before = list(begun.tokens)
    change(made, way)
    truth = own_text(made, first, 12)
    assert truth != own and len(set(truth)) > 2
    assert answer(loop, loop.add(first, settings)) == truth
    assert answer(loop, begun)[len(before) - 30 :] == own_text(made, before, 42 - len(before))
    loop.extend(talk, more, settings)
    assert answer(loop, talk) == own_text(made, [*first, *own, *more], 12)
    assert target.prefixes is not None and sum(n for _, n in target.prefixes.find(first)) == 40
