from __future__ import annotations

from random import Random
from typing import Any

import pytest

from draftwise.core.arms import Stop
from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.drafters.lookup.picked import share
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.errors import UserError

from .test_automaton import check, followers
from .texts import chunks, commit, draft, make_request, starts_of

pytestmark = pytest.mark.usefixtures("language")


class Scan:
    """The same rules as the drafter's, with every count made by scanning the text."""

    def __init__(
        self, text: list[int], *, factor: float, offset: float, min_prob: float, tries: int, depth: int
    ):
        self.text, self.depth, self.tries, self.min_prob = text, depth, tries, min_prob
        self.factor, self.offset = factor, offset
        n = len(text)
        self.match = max(k for k in range(n) if len(starts_of(text, text[n - k :])) > 1) if n else 0

    def contexts(self) -> list[tuple[list[int], int]]:
        """Ends of the text with their lengths; of those that occur equally often, the longest."""
        found: list[tuple[list[int], int]] = []
        seen = set()
        for n in range(min(self.match, self.depth), 0, -1):
            end = self.text[-n:]
            times = len(starts_of(self.text, end))
            if times not in seen:
                seen.add(times)
                found.append((end, n if found else self.match))
        return found[: self.tries]

    def walk(self, context: list[int], most: int) -> tuple[float, list[int], list[float]]:
        joint, score = 1.0, 0.0
        tokens: list[int] = []
        probs: list[float] = []
        while len(tokens) < most:
            context = context[-self.depth :]
            while context and not followers([self.text], context)[0]:
                context = context[1:]
            if not context:
                break
            counts, latest = followers([self.text], context)
            token = max(counts, key=lambda t: (counts[t], latest[t]))
            joint *= counts[token] / counts.total()
            if joint < self.min_prob:
                break
            score += joint
            tokens.append(token)
            probs.append(share(counts[token], counts.total()))
            context = [*context, token]
        return score, tokens, probs

    def draft(self, length: int) -> tuple[list[int], list[float]]:
        best = max(
            (self.walk(c, min(length, int(self.factor * m + self.offset))) for c, m in self.contexts()),
            key=lambda walk: walk[0],
            default=(0.0, [], []),
        )
        return best[1], best[2]


@pytest.mark.parametrize("alphabet", [1, 2, 3, 6, 40])
@pytest.mark.parametrize(
    "options",
    [
        dict(factor=1.0, offset=0.0, min_prob=0.1, tries=4, depth=32),
        dict(factor=2.0, offset=3.0, min_prob=0.0, tries=1, depth=3),
        dict(factor=0.5, offset=1.0, min_prob=0.4, tries=20, depth=5),
    ],
)
def test_agrees_with_a_scan_of_the_text(alphabet: int, options: dict[str, Any]) -> None:
    drafter = SuffixDrafter(**options)
    request = make_request()
    for new in chunks(Random(alphabet), 50, alphabet):
        commit(drafter, request, new)
        scan = Scan(request.tokens, **options)
        assert drafter.hint(request) == scan.match
        made = draft(drafter, request, 9)
        tokens, probs = scan.draft(9)
        assert made.tokens == tuple(tokens)
        assert made.probs == pytest.approx(probs)


def test_signals_are_those_of_the_counts_when_a_rule_reads_them() -> None:
    drafter = SuffixDrafter()
    request = make_request()
    commit(drafter, request, [1, 2, 5, 1, 2, 6, 1, 3, 1])
    made = draft(drafter, request, 1, Stop("svip", 9.0))
    assert made.tokens == (2,)
    assert made.probs == pytest.approx((2 / 3.5,))
    assert made.signals[0].top1 == made.probs[0]
    assert made.signals[0].top2 == pytest.approx(1 / 3.5)
    assert made.signals[0].entropy == pytest.approx(0.9557, abs=1e-4)  # of 4/7, 2/7 and 1/7
    plain = draft(drafter, request, 1)
    assert (plain.tokens, plain.probs) == (made.tokens, made.probs)


def test_a_long_text_is_indexed_anew_from_its_latest_half() -> None:
    drafter = SuffixDrafter(max_tokens=40, depth=4)
    request = make_request()
    whole: list[int] = []
    for new in chunks(Random(4), 300, 3):
        commit(drafter, request, new)
        whole += new
        text = drafter.texts[request.id]
        assert len(text.tokens) == text.index.size <= 40
        assert text.tokens == whole[len(whole) - len(text.tokens) :]
        assert len(text.tokens) >= min(20, len(whole))
    check(text.index, [text.tokens])
    commit(drafter, request, list(range(100, 200)))  # a prompt longer than all that is kept
    assert drafter.texts[request.id].tokens == list(range(180, 200))


def run(drafter: SuffixDrafter, at: int, prompt: list[int], output: list[int]) -> None:
    request = make_request(at)
    commit(drafter, request, prompt)
    for token in output:
        commit(drafter, request, [token])
    drafter.close(request)


def follow(drafter: SuffixDrafter, at: int, tokens: list[int], length: int = 8) -> tuple[Request, Draft]:
    request = make_request(at)
    commit(drafter, request, tokens)
    return request, draft(drafter, request, length)


def test_without_history_a_request_knows_only_itself() -> None:
    drafter = SuffixDrafter()
    run(drafter, 0, [9], [1, 2, 3, 4, 5, 6])
    request, made = follow(drafter, 1, [7, 1, 2])
    assert (drafter.hint(request), made.tokens) == (0.0, ())


def test_history_drafts_from_earlier_outputs_and_not_from_their_prompts() -> None:
    drafter = SuffixDrafter(history=100)
    run(drafter, 0, [20, 21, 22, 23], [1, 2, 3, 4, 5, 6])
    request, made = follow(drafter, 1, [7, 1, 2])
    assert (drafter.hint(request), made.tokens) == (2.0, (3, 4, 5, 6))
    assert follow(drafter, 2, [20, 21])[1].tokens == ()


def test_no_draft_crosses_from_one_earlier_output_into_the_next() -> None:
    drafter = SuffixDrafter(history=100, factor=9.0)
    run(drafter, 0, [9], [1, 2, 3])
    run(drafter, 1, [9], [4, 5, 6])
    assert follow(drafter, 2, [1, 2])[1].tokens == (3,)


def test_the_better_of_text_and_history_drafts_and_the_text_wins_ties() -> None:
    drafter = SuffixDrafter(history=100)
    run(drafter, 0, [9], [1, 2, 3, 4, 5, 6, 7])
    assert follow(drafter, 1, [2, 8, 1, 2])[1].tokens == (3, 4, 5, 6, 7)
    assert follow(drafter, 2, [1, 2, 8, 8, 8, 8, 8, 1, 2])[1].tokens == (8, 8, 8, 8, 8)


@pytest.mark.parametrize("max_tokens", [4, 1000])
def test_a_match_in_the_history_is_found_after_any_commits_and_closes(max_tokens: int) -> None:
    rng = Random(6)
    drafter = SuffixDrafter(history=300, depth=5, max_tokens=max_tokens)
    earlier = drafter.history
    assert earlier
    outputs: list[list[int]] = []
    request = make_request(-1)
    for step, new in enumerate(chunks(rng, 200, 6)):
        commit(drafter, request, new)
        if step % 3 == 0:
            continue  # several commits between two looks
        for _ in range(2):  # and outputs that bear on the text between two looks without a commit
            text = drafter.texts[-1].tokens[-5:]
            held = next(
                o for o in (outputs[i:] for i in range(len(outputs) + 1)) if total(o) == earlier.index.size
            )
            ends = [n for n in range(1, len(text) + 1) if any(starts_of(o, text[-n:]) for o in held)]
            assert earlier.find(drafter.texts[-1])[1] == max(ends, default=0)
            if rng.random() < 0.5:
                continue
            output = [rng.randrange(6), *request.tokens[-rng.randint(1, 6) :]][: max_tokens // 2]
            run(drafter, step, [], output)
            outputs.append(output)


def test_signals_of_a_draft_from_the_history_are_those_of_its_counts() -> None:
    drafter = SuffixDrafter(history=100)
    run(drafter, 0, [], [1, 2, 5, 1, 2, 6, 1, 3, 1])
    request = make_request(1)
    commit(drafter, request, [9, 1])
    made = draft(drafter, request, 1, Stop("svip", 9.0))
    assert made.tokens == (2,)
    assert made.signals[0].top1 == pytest.approx(2 / 3.5) and made.signals[0].top2 == pytest.approx(1 / 3.5)


def total(outputs: list[list[int]]) -> int:
    return sum(map(len, outputs))


def test_a_long_output_reaches_the_history_without_its_prompt() -> None:
    drafter = SuffixDrafter(history=100, max_tokens=20)
    run(drafter, 0, list(range(50, 65)), list(range(100, 112)))
    assert follow(drafter, 1, [62, 63])[1].tokens == ()
    assert follow(drafter, 2, [105, 106])[1].tokens == (107, 108, 109, 110, 111)


def test_history_is_bounded_and_forgets_the_oldest() -> None:
    drafter = SuffixDrafter(history=200, depth=4)
    rng = Random(7)
    outputs: list[list[int]] = []
    earlier = drafter.history
    assert earlier
    for at in range(150):
        # Every output has ids of its own, so that a draft tells where it comes from.
        output = [1000 * at + rng.randrange(3) for _ in range(rng.randint(1, 25))]
        outputs.append(output)
        run(drafter, at, [5, 6], output)
        assert earlier.index.size <= 200
        assert earlier.younger.size <= 100
        kept = next(n for n in range(1, at + 2) if total(outputs[-n:]) == earlier.index.size)
        assert kept == at + 1 or total(outputs[-kept - 1 :]) > 100
        if at % 10 == 9:
            check(earlier.index, outputs[-kept:])
            known = {token for output in outputs[-kept:] for token in output}
            for old in outputs:
                _, made = follow(drafter, 10_000, old[:1])
                assert set(made.tokens) <= known
                drafter.texts.clear()
    assert kept < 100


def test_an_output_longer_than_half_the_history_leaves_its_end() -> None:
    drafter = SuffixDrafter(history=20)
    run(drafter, 0, [5], list(range(100, 150)))
    assert follow(drafter, 1, [120])[1].tokens == ()
    assert follow(drafter, 2, [145])[1].tokens == (146, 147, 148)


def test_closing_frees_the_text_and_an_unknown_request_is_no_error() -> None:
    drafter = SuffixDrafter()
    request = make_request()
    assert drafter.hint(request) == 0.0
    assert draft(drafter, request).tokens == ()
    commit(drafter, request, [1, 2, 1])
    drafter.close(request)
    drafter.close(request)
    assert drafter.texts == {}
    assert drafter.history is None


def test_settings_that_draft_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"suffix\?factor=0.0&offset=0.0: nothing is drafted"):
        SuffixDrafter(factor=0.0, offset=0.0)
