"""Composite drafts: what each part adds, that nothing of it remains, and that the text is exact."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import NEVER, Arm, Context, Decision, HandOver, Stop
from draftwise.core.contract import first as beginning
from draftwise.core.contract import framed
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.cascade import CascadeDrafter
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.none import NoneDrafter
from draftwise.errors import UserError
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import Anyone
from tests.distributions import check_distribution, exact
from tests.drafters.test_together import ARCHITECTURES, Copies, Fails, Says, check_greedy
from tests.effort import some
from tests.exactness.test_exact_distribution import BAD, GOOD, LENGTH, PROMPT, SETTINGS, P, V
from tests.tiny import VOCAB, model


def asked(tokens: Sequence[int], key: int = 0) -> Request:
    return Request(key, list(tokens), len(tokens), Sampling(max_new_tokens=50), Random(0), Random(0))


class Stopping(Anyone):
    """Plays an arm at random, by its stop rules."""

    def choose(self, context: Context, rng: Random) -> Decision:
        arm = rng.randrange(len(self.arms))
        return Decision(arm, 1.0, self.arms[arm].stops)


def loop(
    cascades: dict[str, str], parts: dict[str, Drafter], target: Any = None, *, length: int = 4, seed: int = 0
) -> Loop:
    """A loop whose rounds are drafted by these cascades, or with none of them, at random."""
    made = {name: CascadeDrafter(*_spec(text)[0], **_spec(text)[1]) for name, text in cascades.items()}
    stops = {name: Stop("confidence", 0.5) if cascade.match else NEVER for name, cascade in made.items()}
    policy = Stopping((*(Arm(name, length, stop=stops[name]) for name in made), Arm("none", 0)))
    return Loop(target or SimTarget(markov(P), V), {**made, **parts}, policy, policy, seed=seed)


def _spec(text: str) -> tuple[tuple[str], dict[str, Any]]:
    path, _, first = text.partition("?")
    if first == "instead":
        return (path,), {first: True}
    name, _, number = first.rpartition("=")
    return (path,), {name or "first": int(number or 1)}


def joined(path: str, parts: dict[str, Drafter], vocab: int = V, **options: Any) -> CascadeDrafter:
    """A cascade in the team of a loop."""
    cascade, policy = CascadeDrafter(path, **options), Anyone((Arm("cascade", 4),))
    Loop(SimTarget(markov(P), vocab), {**parts, "cascade": cascade}, policy, policy)
    return cascade


def drafted(
    path: str, parts: dict[str, Drafter], tokens: Sequence[int], length: int, **options: Any
) -> tuple[int, ...]:
    """The tokens of one draft."""
    cascade, request = joined(path, parts, **options), asked(tokens)
    for part in parts.values():
        part.observe(request, tokens)
    return cascade.draft([Job(request, length)])[0].tokens


def test_the_second_part_continues_where_the_first_ends() -> None:
    parts: dict[str, Drafter] = {"a": Says(1, 2, 3), "b": NgramDrafter()}
    text = [5, 1, 6, 7, 8, 9]
    assert drafted("a>b", parts, text, 4) == (1, 6, 7, 8)  # 1 leads to what followed it
    assert drafted("a>b", parts, text, 1) == (1,)
    assert drafted("a>b", {"a": Says(), "b": NgramDrafter()}, text, 4) == ()  # less than its share: it ended
    two: dict[str, Drafter] = {"a": NgramDrafter(), "b": SimDrafter(markov(P))}
    assert drafted("a>b", two, [0, 1, 2], 3, first=0) == drafted(
        "b>b2", {"b": two["b"], "b2": two["b"]}, [0, 1, 2], 3
    )
    assert drafted("a>b", two, [0, 1, 0], 3, instead=True) == (1, 0, 1)
    assert len(drafted("a>b", two, [0, 1, 2], 3, instead=True)) == 3


@pytest.mark.parametrize("lookup", [NgramDrafter, SuffixDrafter])
def test_a_lookup_continues_other_tokens_and_is_then_as_before(lookup: type[Any]) -> None:
    rng = Random(1)
    for _ in range(40):
        text = [rng.randrange(5) for _ in range(rng.randrange(2, 40))]
        more = [rng.randrange(6) for _ in range(rng.randrange(1, 5))]
        one, whole = lookup(), lookup()
        request = asked(text)
        one.observe(request, text)
        whole.observe(asked([*text, *more]), [*text, *more])
        before = one.draft([Job(request, 8)]), one.hint(request)
        (after,) = one.draft_after([Job(request, 8)], [more])
        assert (one.draft([Job(request, 8)]), one.hint(request)) == before
        if lookup is NgramDrafter:  # exactly as if they had been written
            assert (after,) == tuple(whole.draft([Job(asked([*text, *more]), 8)]))
        one.observe(request, more)
        assert one.draft([Job(request, 8)]) == whole.draft([Job(asked([*text, *more]), 8)])


def occurs(text: Sequence[int], end: Sequence[int], most: int) -> int:
    """The longest end that occurs in a text, at most `most` tokens."""
    found = [
        n for n in range(1, most + 1) if any(text[k : k + n] == end[-n:] for k in range(len(text) - n + 1))
    ]
    return max(found, default=0)


@pytest.mark.parametrize(("lookup", "most"), [(NgramDrafter, 4), (SuffixDrafter, 32)])
def test_a_match_after_other_tokens_is_the_longest(lookup: type[Any], most: int) -> None:
    rng = Random(2)
    for _ in range(80):
        text = [rng.randrange(4) for _ in range(rng.randrange(2, 40))]
        more = [rng.randrange(5) for _ in range(rng.randrange(1, 6))]
        one = lookup()
        assert one.match_after(asked(text), more) == 0, "not yet observed"
        one.observe(asked(text), text)
        seen = text if lookup is NgramDrafter else text[:-1]  # its last token was not followed by another
        whole = [*text, *more]
        assert one.match_after(asked(text), more) == occurs(seen, whole, min(most, len(seen)))
        assert one.match_after(asked(text), ()) == one.hint(asked(text))


def test_a_model_forgets_what_it_continued() -> None:
    drafter, fresh = LMDrafter(model("llama"), VOCAB), LMDrafter(model("llama"), VOCAB)
    request = asked([3, 5, 3])
    (after,) = drafter.draft_after([Job(request, 3)], [(9, 4)])
    assert after.tokens == fresh.draft([Job(asked([3, 5, 3, 9, 4], 1), 3)])[0].tokens
    request.tokens += [7, 9]
    (now,) = drafter.draft([Job(request, 3)])
    assert now.tokens == fresh.draft([Job(asked([3, 5, 3, 7, 9], 2), 3)])[0].tokens


@pytest.mark.parametrize(
    ("cascade", "said"),
    [
        ("a", "name two"),
        ("a>", "name two"),
        ("a>c", "no drafter 'c'"),
        ("b>a", "cannot continue"),
        ("r>b", "no drafter 'r'"),
        ("a>sim?match=1", "sim looks nothing up"),
    ],
)
def test_parts_and_options_that_do_not_fit_are_named(cascade: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        loop({"r": cascade}, {"a": Says(1), "b": NgramDrafter(), "sim": SimDrafter(markov(P))})
    with pytest.raises(UserError, match="instead or match"):
        CascadeDrafter("a>b", instead=True, match=2)


def test_a_part_that_fails_costs_no_text() -> None:
    made = loop(
        {"r": "bad>ngram", "s": "says>ngram?0"},
        {"bad": Fails(), "ngram": NgramDrafter(), "says": Says(V + 3)},
    )
    request = made.add(PROMPT, Sampling(max_new_tokens=90))
    while made.open:
        made.step()
    own = [t for r in loop({}, {}).run([PROMPT], Sampling(max_new_tokens=90)) for t in r.tokens]
    assert request.tokens[len(PROMPT) :] == own and made.faults["bad"] == 1 and made.faults["r"] == 0


class Breaks(NgramDrafter):
    """A lookup that fails once it is to look after another's tokens, or to go on after them."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def match_after(self, request: Request, written: Sequence[int]) -> int:
        if self.where == "match":
            raise RuntimeError("no such table")
        return super().match_after(request, written)

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        if self.where == "draft":
            raise RuntimeError("no such table")
        return super().draft_after(jobs, written)


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize("where", ["match", "draft"])
def test_a_lookup_that_fails_is_blamed_itself(where: str, bad: bool) -> None:
    """The model goes on to draft, alone; the text is its own."""
    first = SimDrafter(markov(BAD if bad else GOOD))
    made = loop({"r": "model>broken?match=1"}, {"model": first, "broken": Breaks(where)})
    rounds = list(made.run([PROMPT], Sampling(max_new_tokens=90)))
    own = [t for r in loop({}, {}).run([PROMPT], Sampling(max_new_tokens=90)) for t in r.tokens]
    assert [t for r in rounds for t in r.tokens] == own
    assert made.faults == {"r": 0, "model": 0, "broken": 1}
    assert sum(r.drafted > 0 for r in rounds[len(rounds) // 2 :]) > 1


CASCADES = {
    "r": "bad>ngram",
    "s": "good>suffix?2",
    "t": "ngram>good?0",
    "u": "suffix>bad?instead",
    "v": "bad>ngram?match=1",
    "w": "good>suffix?match=2",
}


@pytest.mark.parametrize("settings", some(list(SETTINGS), 2))
def test_the_law_is_kept(settings: str) -> None:
    distribution = exact(markov(P), PROMPT, V, LENGTH, SETTINGS[settings])
    good, bad = SimDrafter(markov(GOOD)), Copies(markov(BAD))  # one draws, although it is asked not to
    parts: dict[str, Drafter] = {"good": good, "bad": bad, "ngram": NgramDrafter(), "suffix": SuffixDrafter()}
    check_distribution(loop(CASCADES, parts), PROMPT, SETTINGS[settings], 1200, distribution, batch=5)


class Rare(NoneDrafter):
    """A second part that continues after one token alone: a draft's end depends on what was drawn."""

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        return [Draft.chain([1] if tokens[-1] == 2 else []) for tokens in written]


def test_what_is_continued_may_depend_on_what_was_drawn() -> None:
    """A draft that ends where it drew another token is verified as picked too: 2 would be too rare."""
    even = markov(np.tile([0.2, 0.2, 0.4, 0.2], (V, 1)))
    distribution = exact(even, PROMPT, V, LENGTH, SETTINGS["plain"])
    made: dict[str, Drafter] = {"draws": Copies(even), "rare": Rare()}
    made_loop = loop({"r": "draws>rare"}, made, SimTarget(even, V))
    check_distribution(made_loop, PROMPT, SETTINGS["plain"], 3000, distribution)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_the_models_own(name: str, batch: int) -> None:
    rounds = check_greedy(name, batch, lambda target, parts: loop(CASCADES, parts, target, length=6))
    assert any(r.accepted >= 3 for r in rounds)


class Hears(NgramDrafter):
    """Keeps the stop rules that it is given for what it continues."""

    def draft_after(self, jobs: Sequence[Job], written: Sequence[Sequence[int]]) -> list[Draft]:
        self.stops = [job.stops for job in jobs]
        return super().draft_after(jobs, written)


@pytest.mark.parametrize(
    ("options", "left"),
    [({}, (1, 2)), ({"first": 2}, (2,)), ({"first": 3}, (2,)), ({"match": 1}, ())],
)
def test_the_places_of_the_second_part_keep_their_own_stop_rules(
    options: dict[str, Any], left: tuple[int, ...]
) -> None:
    rules = tuple(Stop("confidence", 0.1 * k) for k in range(3))
    cascade = joined("a>b", {"a": Says(1, 2, 3), "b": (second := Hears())}, **options)
    second.observe(request := asked([5, 1, 6]), [5, 1, 6])
    cascade.draft([Job(request, 4, stops=rules)])
    assert second.stops == [tuple(rules[k] for k in left) or (NEVER,)]


def test_a_stop_rule_of_the_first_part_ends_the_draft() -> None:
    lookup = NgramDrafter()
    cascade = joined("model>ngram", {"model": SimDrafter(markov(P)), "ngram": lookup}, first=2)
    request = asked([0, 1, 2, 1, 0, 1])
    lookup.observe(request, request.tokens)
    always = (Stop("max-confidence", 2.0),)
    assert len(cascade.draft([Job(request, 6, always)])[0].tokens) == 1
    assert len(cascade.draft([Job(request, 6)])[0].tokens) == 6


class Guesses(SimDrafter):
    """Counts the tokens it drafts; it ends where `until` says."""

    def __init__(self) -> None:
        super().__init__(markov(P))
        self.made = 0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        drafts = []
        for job, draft in zip(jobs, super().draft(jobs), strict=True):
            n = len(draft.tokens)
            ends = (k for k in range(1, n) if job.until is not None and job.until(draft.tokens[:k]))
            drafts.append(beginning(draft, next(ends, n)))
            self.made += len(drafts[-1].tokens)
        return drafts


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("lookup", [NgramDrafter, SuffixDrafter])
def test_the_second_part_takes_over_at_its_first_match(lookup: type[Any], reads: bool) -> None:
    rng, taken = Random(4), set()
    for key in range(60):
        text = [rng.randrange(V) for _ in range(rng.randrange(3, 9))]
        model = Guesses() if reads else SimDrafter(markov(P))
        second, match = lookup(), rng.randrange(1, 4)
        cascade = joined("model>lookup", {"model": model, "lookup": second}, match=match)
        request = asked(text, key)
        second.observe(request, text)
        (alone,) = SimDrafter(markov(P)).draft([Job(request, 6)])
        found = [second.match_after(request, alone.tokens[: k + 1]) for k in range(6)]
        head = next((k + 1 for k, n in enumerate(found) if n >= match), 6)
        (draft,) = cascade.draft([Job(request, 6)])
        (rest,) = second.draft_after([Job(request, 6)], [alone.tokens[:head]])
        late = found[head - 1] >= match
        assert draft.tokens == (alone.tokens[:head] + rest.tokens * late)[:6]
        assert (draft.prefix_length, draft.match) == (head, found[head - 1] * late)
        assert not isinstance(model, Guesses) or model.made == head
        taken.add(head)
    assert len(taken) > 2


def test_gates_say_how_much_is_added_with_which_match() -> None:
    """Three tokens of a drafter, and what the lookup adds after one, two or all of them."""
    second = NgramDrafter()
    cascade = joined("says>ngram", {"says": Says(1, 2, 3), "ngram": second}, vocab=16, match=1)
    text = [5, 1, 7, 8, 9, 1, 2, 4, 6]
    request = asked(text)
    second.observe(request, text)
    assert [second.match_after(request, x) for x in ((1,), (1, 2), (1, 2, 3), ())] == [1, 2, 0, 0]

    def drafted(*hand_overs: HandOver) -> tuple[int, ...]:
        (draft,) = cascade.draft([Job(request, 9, hand_overs=hand_overs)])
        return draft.tokens

    assert drafted() == (1, 2, 4, 6, 1, 2, 4, 6, 1)  # a match of one, with all that is left
    assert drafted(HandOver(1, 2)) == (1, 2, 4)
    assert drafted(HandOver(2, 2)) == (1, 2, 4, 6)
    assert drafted(HandOver(1, 3), HandOver(2, 1)) == (1, 2, 4, 6)
    assert drafted(HandOver(1, 3, inside=False)) == drafted(HandOver(3, 3)) == (1, 2, 3)
    assert drafted(HandOver(1, 0), HandOver(2, 1)) == (1, 2, 4)
    request = asked([6, 1, 7, 8, 6])
    second.observe(request, request.tokens)
    assert second.match_after(request, (1,)) == 2
    assert drafted(HandOver(1, 1), HandOver(2, 2)) == (1, 7, 8)
    assert drafted(HandOver(1, 1), HandOver(2, 2, inside=False)) == (1, 2, 3), (
        "the longer match's threshold counts"
    )


def test_a_grammar_leaves_the_parts_of_a_draft_as_they_are() -> None:
    """It cuts drafts, and adds what must come before and after them."""
    draft = Draft.chain([1, 2, 3, 4, 5], prefix_length=2, match=3)
    assert [(cut.prefix_length, cut.match) for cut in (beginning(draft, n) for n in (1, 2, 3))] == [
        (1, 0),
        (2, 0),
        (2, 3),
    ]
    more = framed([7], draft, [8, 9])
    assert (more.tokens, more.prefix_length, more.match) == ((7, 1, 2, 3, 4, 5, 8, 9), 3, 3)
    assert framed([7], Draft.chain([1]), []).prefix_length == 0, "of one part"
