"""Which passes the target runs: pieces of a prompt, the verification, and what is read ahead of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.drafts import Draft, Verdict
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.models.runner import PassInput, PassOutput
from draftwise.targets import hf
from draftwise.targets.hf import HFTarget
from draftwise.targets.scores import GreedyScores, SampledScores
from tests.tiny import VOCAB, model

GREEDY = Sampling()


def request(key: int, tokens: list[int], settings: Sampling = GREEDY) -> Request:
    return Request(key, tokens, len(tokens), settings, Random(0), Random(0))


def text(length: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(2, VOCAB) for _ in range(length)]


class Passes:
    """A target that notes each pass: how many tokens of each text, and how many logits it keeps."""

    def __init__(self, made: Any, **options: Any) -> None:
        self.target = HFTarget(made, **options)
        self.ran: list[tuple[list[int], int]] = []
        rows: Any = self.target.runner
        forward = rows.forward

        def noted(given: PassInput) -> PassOutput:
            output: PassOutput = forward(given)
            self.ran.append(([len(t) for t in given.tokens], output.logits.shape[1]))
            return output

        rows.forward = noted

    def read(self, *requests: Request) -> list[Any]:
        """One round without drafts; returns the scores."""
        scores = self.target.verify([(one, Draft()) for one in requests])
        self.target.commit([(one, Draft(), Verdict((), 0)) for one in requests])
        return list(scores)


def test_a_prompt_is_read_in_pieces_that_keep_one_logit() -> None:
    passes = Passes(model("llama"))
    one = request(0, text(216))
    passes.target.open(one)
    passes.read(one)
    assert passes.ran == [([24], 1), ([192], 1)]


def test_between_the_rounds_of_others_the_pieces_are_half_as_long() -> None:
    """The others wait for each of them."""
    passes = Passes(model("llama"), chunk=16)
    one, other = request(0, text(60)), request(1, text(3, seed=1))
    for each in (one, other):
        passes.target.open(each)
    assert passes.target.read(one, [other]) and passes.target.read(one, [])
    assert passes.ran == [([8], 1), ([16], 1)]


def test_a_prompt_beside_others_is_read_before_the_pass_of_all() -> None:
    passes = Passes(model("llama"), chunk=16)
    long, short = request(0, text(40)), request(1, text(3, seed=1))
    for one in (long, short):
        passes.target.open(one)
    passes.read(long, short)
    assert passes.ran == [([16], 1), ([16], 1), ([7], 1), ([1, 3], 3)]


def test_a_long_new_turn_is_read_ahead_as_a_prompt_is() -> None:
    """The others would be padded to its length otherwise."""
    made = model("llama")
    passes = Passes(made, chunk=64)
    first, second = request(0, text(30)), request(1, text(5, seed=1))
    for one in (first, second):
        passes.target.open(one)
    passes.read(first, second)
    passes.ran.clear()
    first.tokens += text(31, seed=2)
    second.tokens.append(7)
    scores = passes.read(first, second)
    assert passes.ran == [([31], 1), ([1, 2], 2)]
    with torch.inference_mode():
        alone = made(torch.tensor([first.tokens])).logits[0, -1]
    torch.testing.assert_close(scores[0].logits[0], alone)


def test_few_shared_tokens_are_read_again_and_many_are_copied() -> None:
    passes = Passes(model("llama"), chunk=64)
    first = request(0, text(40))
    passes.target.open(first)
    passes.read(first)
    passes.ran.clear()
    few = request(1, [*text(10), *text(20, seed=1)])
    many = request(2, [*text(30), *text(20, seed=2)])
    for one in (few, many):
        passes.target.open(one)
    with torch.inference_mode():
        passes.target._read(1, few, [first, few], alone=False, slots=64)
        passes.target._read(2, many, [first, many], alone=False, slots=64)
    assert passes.ran == [([29], 1), ([19], 1)]


def test_whether_trees_can_be_read_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(hf, "check_trees", lambda rows, *, probe: asked.append(probe))
    target = HFTarget(model("llama"))
    one, tree = request(0, [3, 4, 5]), Draft((5, 6), (-1, -1))
    target.open(one)
    target.verify([(one, Draft.chain([5, 6]))])
    assert not asked
    for _ in range(2):
        target.verify([(one, tree)])
    assert asked == [True]


def keep_all(ids: Any, scores: Any) -> Any:
    """A logits processor."""
    return scores


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (Sampling(), GreedyScores),
        (Sampling(temperature=1.0), SampledScores),
        (Sampling(repetition_penalty=1.2), SampledScores),
        (Sampling(presence_penalty=0.5), SampledScores),
        (Sampling(frequency_penalty=0.5), SampledScores),
        (Sampling(processors=(keep_all,)), SampledScores),
    ],
)
def test_only_plain_greedy_decoding_takes_the_most_likely_token(settings: Sampling, kind: type) -> None:
    target = HFTarget(model("llama"))
    one = request(0, [3, 4, 5], settings)
    target.open(one)
    assert type(target.verify([(one, Draft())])[0]) is kind


@pytest.mark.parametrize(("others", "width"), [(1, 11), (3, 1), (31, 1)])
def test_a_short_prompt_has_a_pass_of_its_own_where_it_would_widen_that_of_many(
    others: int, width: int
) -> None:
    """Ten tokens beside one row are 11 tokens of padding, and beside 31 rows 320: more than a pass takes."""
    passes = Passes(model("llama"))
    here = [request(k, text(20, k)) for k in range(others)]
    for one in here:
        passes.target.open(one)
    passes.target.verify([(one, Draft()) for one in here])
    for one in here:
        one.tokens.append(3)
    passes.target.commit([(one, Draft(), Verdict((), 3)) for one in here])
    new = request(99, text(11, 99))
    passes.target.open(new)
    passes.ran.clear()
    while passes.target.read(new, here):
        pass
    passes.read(*here, new)
    assert max(passes.ran[-1][0]) == width and sum(sum(widths) for widths, _ in passes.ran) == others + 11
