from __future__ import annotations

from draftwise.core.drafts import Draft, Job
from draftwise.drafters.none import NoneDrafter

from .lookup.texts import commit, make_request


def test_never_guesses() -> None:
    drafter = NoneDrafter()
    request = make_request()
    commit(drafter, request, [1, 2, 1, 2])
    assert drafter.hint(request) == 0.0
    assert drafter.draft([Job(request, 4), Job(make_request(1), 2)]) == [Draft(), Draft()]
    drafter.close(request)
