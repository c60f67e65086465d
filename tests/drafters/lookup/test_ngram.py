from __future__ import annotations

from random import Random

import pytest

from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.ngrams import LOOKED
from draftwise.errors import UserError

from .texts import chunks, commit, draft, make_request, starts_of

pytestmark = pytest.mark.usefixtures("language")


def look(text: list[int], shortest: int, longest: int) -> tuple[int, int]:
    """The longest n-gram at the end that occurred before, and where the latest such occurrence ended."""
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        found = starts_of(text[:-1], text[-n:])
        if found:
            return n, found[-1] + n
    return 0, 0


def common(text: list[int], source: int, most: int) -> int:
    """How many tokens before `source` are those at the end."""
    n = 0
    while n < min(source, most) and text[source - 1 - n] == text[-1 - n]:
        n += 1
    return n


def copied(text: list[int], source: int, length: int) -> tuple[int, ...]:
    grown = list(text)
    for i in range(length):
        grown.append(grown[source + i])
    return tuple(grown[len(text) :])


@pytest.mark.parametrize(("shortest", "longest"), [(1, 4), (2, 3), (3, 3), (1, 9)])
@pytest.mark.parametrize("alphabet", [2, 4, 30])
def test_agrees_with_a_scan_of_the_text(alphabet: int, shortest: int, longest: int) -> None:
    drafter = NgramDrafter(min=shortest, max=longest)
    request = make_request()
    for new in chunks(Random(alphabet * 100 + longest), 150, alphabet):
        commit(drafter, request, new)
        match, source = look(request.tokens, shortest, longest)
        length = common(request.tokens, source, LOOKED) if match == longest else match
        assert drafter.hint(request) == length >= match
        made = draft(drafter, request, 11)
        assert made.tokens == (copied(request.tokens, source, 11) if match else ())


def test_confidence_is_how_often_matches_of_that_length_were_right() -> None:
    drafter = NgramDrafter(min=1, max=3)
    request = make_request()
    right, asked = [1] * 4, [2] * 4
    for new in chunks(Random(5), 120, 3):
        for token in new:
            match, source = look(request.tokens, 1, 3)
            if match:
                asked[match] += 1
                right[match] += request.tokens[source] == token
            commit(drafter, request, [token])
        match, _ = look(request.tokens, 1, 3)
        made = draft(drafter, request, 5)
        lengths = [min(match + i, 3) for i in range(5)] if match else []
        assert made.probs == pytest.approx([right[n] / asked[n] for n in lengths])
        assert all(s.chosen == s.top1 >= s.top2 >= 0.0 and 0.0 <= s.entropy <= 0.694 for s in made.signals)


def test_a_match_is_as_long_as_both_passages_agree() -> None:
    passage = list(range(10, 80))
    drafter, request, seen = NgramDrafter(), make_request(), []
    commit(drafter, request, passage)
    for token in passage[5:60]:
        before = drafter.match_after(request, [token])
        commit(drafter, request, [token])
        seen.append(drafter.hint(request))
        assert before == seen[-1]
    assert seen == [float(min(n, LOOKED)) for n in range(1, 56)]
    assert drafter.match_after(request, passage[60:63]) == LOOKED
    assert drafter.match_after(request, [1, 2]) == 0


def test_a_request_goes_on_until_it_is_closed() -> None:
    drafter = NgramDrafter()
    request = make_request()
    commit(drafter, request, [1, 2, 3])
    commit(drafter, request, [9, 1, 2])  # the next turn
    assert draft(drafter, request, 1).tokens == (3,)
    drafter.close(request)
    assert drafter.texts == {}
    assert draft(drafter, request).tokens == ()
    drafter.close(request)  # the loop may close a request that this drafter was taken out of


@pytest.mark.parametrize("options", [{"min": 0}, {"min": 3, "max": 2}, {"max": 65}])
def test_bad_settings_name_the_value(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match=str(next(iter(options.values())))):
        NgramDrafter(**options)
