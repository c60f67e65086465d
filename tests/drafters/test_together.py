"""Every drafter at once: what is merged, who falls out, and that the text stays the target's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.round import Round
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import TogetherDrafter, merged
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.none import NoneDrafter
from draftwise.targets.hf import HFTarget
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import Anyone, group_tokens
from tests.distributions import check_distribution, exact
from tests.effort import some
from tests.exactness.test_exact_distribution import BAD, GOOD, LENGTH, PROMPT, SETTINGS, P, V
from tests.tiny import CONFIGS, VOCAB, model, own_text


class Says(NoneDrafter):
    """Drafts the same tokens whatever the text."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.observed = 0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft.chain(self.tokens[: job.length]) for job in jobs]

    def observe(self, request: Request, new: Sequence[int]) -> None:
        self.observed += len(new)


class Fails(NoneDrafter):
    """Raises at its second call."""

    calls = 0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of luck")
        return [Draft.chain([1])] * len(jobs)


def loop(parts: dict[str, Drafter], target: Any = None, *, length: int = 3, seed: int = 0) -> Loop:
    policy = Anyone((Arm("all", length, width=len(parts)),))
    return Loop(
        target or SimTarget(markov(P), V), parts | {"all": TogetherDrafter()}, policy, policy, seed=seed
    )


def test_equal_beginnings_share_their_nodes() -> None:
    tree = merged([Draft.chain(c) for c in ([5, 6, 7], [5, 6, 8, 9], [], [6, 6], [5, 6, 7, 1])], 99)
    assert tree == Draft((5, 6, 7, 8, 9, 6, 6, 1), (-1, 0, 1, 1, 3, -1, 5, 2))
    assert merged([Draft.chain([5, 6]), Draft.chain([5, 6])], 99) == Draft.chain([5, 6])
    assert merged([Draft((5, 7, 6), (-1, -1, 0)), Draft((7, 8), (-1, 0))], 99) == Draft(
        (5, 7, 6, 8), (-1, -1, 0, 1)
    )
    assert merged([], 99) == Draft()


def test_what_has_no_room_is_left_out_from_the_end() -> None:
    drafts = [Draft.chain(c) for c in ([5, 6, 7], [5, 8, 9], [4])]
    assert [merged(drafts, most).tokens for most in (6, 5, 4, 1)] == [
        (5, 6, 7, 8, 9, 4),
        (5, 6, 7, 8, 9),
        (5, 6, 7, 8),
        (5,),
    ]
    assert all(merged(drafts, most).parents[:4] == (-1, 0, 1, 0)[:most] for most in range(7))


def first(made: Loop, **settings: Any) -> Round:
    """The first round of a text."""
    made.add(PROMPT, Sampling(**{"max_new_tokens": 20} | settings))
    return made.step()[0]


def test_everyone_is_asked_and_told_once() -> None:
    parts: dict[str, Drafter] = {"a": Says(1, 2, 3, 0), "b": Says(1, 0, 0), "none": NoneDrafter()}
    made = loop(parts)
    round = first(made)
    assert round.drafted == 5  # 1 2 3 and 1 0 0
    for part in parts.values():
        if isinstance(part, Says):
            assert part.observed == len(PROMPT) + len(round.tokens)


def test_one_without_a_team_says_so() -> None:
    with pytest.raises(ValueError, match="no other drafters"):
        TogetherDrafter().draft([])


def test_those_that_would_sample_draft_their_likeliest_tokens() -> None:
    made = loop({"good": SimDrafter(markov(GOOD)), "lm": LMDrafter(model("llama"), V)})
    seen: list[Draft] = []
    verify = made.target.verify

    def noted(batch: Any) -> Any:
        seen.extend(draft for _, draft in batch)
        return verify(batch)

    made.target.verify = noted  # type: ignore[method-assign]
    request = made.add(PROMPT, Sampling(max_new_tokens=20, temperature=1.0))
    made.step()
    (draft,) = seen
    most_likely, at = [], PROMPT[-1]
    for _ in range(3):
        at = int(GOOD[at].argmax())
        most_likely.append(at)
    assert draft.dist is None and draft.tokens[:3] == tuple(most_likely) and len(draft.tokens) >= 4
    greedy = LMDrafter(model("llama"), V).draft([Job(_at(request), 3)])[0].tokens
    assert merged([Draft.chain(most_likely), Draft.chain(greedy)], 6) == draft


def _at(request: Request) -> Request:
    return Request(0, request.tokens[: len(PROMPT)], len(PROMPT), Sampling(), Random(0), Random(0))


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [Fails(), Says(V + 3, 0), Says(-1)], ids=["raises", "outside", "negative"])
def test_only_the_part_that_fails_falls_out(bad: Drafter) -> None:
    made = loop({"a": Says(1, 2, 3), "bad": bad, "b": Says(2, 2, 2)})
    request = made.add(PROMPT, Sampling(max_new_tokens=12))
    rounds = []
    while made.open:
        rounds += made.step()
    plain = loop({})
    own = [t for r in plain.run([PROMPT], Sampling(max_new_tokens=12)) for t in r.tokens]
    assert request.tokens[len(PROMPT) :] == own
    assert request.disabled == {"bad"} and made.faults == {"a": 0, "bad": 1, "b": 0, "all": 0}
    at = next(i for i, r in enumerate(rounds) if r.fault)
    assert rounds[at].fault.startswith("bad: ") and rounds[at].drafted == 6
    assert not any(r.fault for r in rounds[at + 1 :])


# -- the text is the target's own --------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_law_is_kept(settings: str) -> None:
    distribution = exact(markov(P), PROMPT, V, LENGTH, SETTINGS[settings])
    good, bad = SimDrafter(markov(GOOD)), SimDrafter(markov(BAD))
    parts: dict[str, Drafter] = {"good": good, "bad": bad, "ngram": NgramDrafter(), "suffix": SuffixDrafter()}
    check_distribution(loop(parts), PROMPT, SETTINGS[settings], 1200, distribution, batch=5)


class Copies(SimDrafter):
    """Samples although it was asked for its most likely tokens: lossless all the same."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [self._chain(Job(j.request, j.length)) for j in jobs]


def test_sampled_tokens_may_count_as_picked() -> None:
    distribution = exact(markov(P), PROMPT, V, LENGTH, SETTINGS["plain"])
    parts: dict[str, Drafter] = {"a": Copies(markov(GOOD)), "b": Copies(markov(BAD))}
    check_distribution(loop(parts), PROMPT, SETTINGS["plain"], 2000, distribution)


ARCHITECTURES = some([n for n in CONFIGS if n not in ("gemma2-window", "minimax-sparse")], 2)


def check_greedy(name: str, batch: int, loop_of: Callable[[Any, dict[str, Drafter]], Loop]) -> list[Round]:
    """Greedy text is the model's own, with good and bad drafters; returns the rounds."""
    made = model(name, dtype=torch.float32)
    prompts = [[3, 5, 3, 5, 3], [7] * 12, [4, 9, 2, 4, 9]]
    team = loop_of(
        HFTarget(made),
        {
            "bad": LMDrafter(model(name, seed=9), VOCAB),
            "good": LMDrafter(made, VOCAB),
            "ngram": NgramDrafter(),
            "suffix": SuffixDrafter(),
        },
    )
    rounds = list(team.run(prompts, Sampling(max_new_tokens=30), batch=batch))
    assert group_tokens(rounds) == [own_text(made, p, 30) for p in prompts]
    assert not any(team.faults.values())
    return rounds


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_the_models_own(name: str, batch: int) -> None:
    rounds = check_greedy(name, batch, lambda target, parts: loop(parts, target, length=4))
    assert any(r.accepted >= 4 < r.drafted for r in rounds)
