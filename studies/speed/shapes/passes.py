"""Times target passes by width and drafts by length, through the roles that the loop calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from time import perf_counter

from draftwise.core.drafts import NOTHING, Draft, Job, Verdict
from draftwise.core.request import Request
from draftwise.core.roles import Drafter, Target
from draftwise.core.sampling import Sampling

WIDTHS = (1, 2, 3, 4, 5, 6, 9, 13, 17, 33)
LENGTHS = (1, 2, 4, 8)  # of drafts
BEHIND = (1, 3, 6)  # tokens that the drafter reads first: those of the last round
ROOM = 64  # tokens that may follow the context
READ = 16  # tokens of the context that are really read
Drafted = tuple[int, int, float]


def text(vocab_size: int, length: int, rng: Random) -> Request:
    """A request whose text is random tokens."""
    tokens = [rng.randrange(vocab_size) for _ in range(length)]
    return Request(1, tokens, length, Sampling(max_new_tokens=ROOM), Random(0), Random(0))


def seated(part: Target | Drafter, request: Request) -> None:
    """Let a model's cache hold the context; where its length can be set, only the first tokens are read.

    A pass takes as long whatever its keys and values are, and reading some hundred tokens takes a minute
    where a type has no fast product.
    """
    rows = getattr(part, "rows", None)
    if rows is None or len(request.tokens) <= READ:
        return
    whole, request.tokens = request.tokens, request.tokens[:READ]
    if isinstance(part, Target):
        part.verify([(request, Draft())])
        part.commit([(request, Draft(), Verdict((), NOTHING))])
    else:
        part.draft([Job(request, 1)])
        part.places[request.id].now(len(whole) - 1)  # type: ignore[attr-defined]
    request.tokens = whole
    rows.held[rows.keys.index(request.id)] = len(whole) - 1


def time_passes(
    target: Target, widths: Sequence[int], context: int, repeats: int, *, budget: float
) -> dict[int, list[float]]:
    """Seconds of passes over so many tokens, the widths in turn, as often as the budget allows.

    Every width is timed at least twice after a first pass that is not timed; `repeats` is the most.
    """
    rng = Random(1)
    request = text(target.vocab_size, context, rng)
    target.open(request)
    seated(target, request)
    drafts = [Draft.chain([rng.randrange(target.vocab_size) for _ in range(width - 1)]) for width in widths]
    found: dict[int, list[float]] = {width: [] for width in widths}
    for width, seconds in _turns(target, request, drafts, repeats, budget):
        found[width].append(seconds)
    target.close(request)
    return found


def _turns(
    target: Target, request: Request, drafts: Sequence[Draft], repeats: int, budget: float
) -> Iterator[tuple[int, float]]:
    for turn in range(-1, repeats):
        if turn == 0:
            began = perf_counter()
        if turn > 1 and perf_counter() - began > budget * turn / (turn + 1):
            return
        for draft in drafts:
            start = perf_counter()
            target.verify([(request, draft)])
            seconds = perf_counter() - start
            target.commit([(request, draft, Verdict((), NOTHING))])
            if turn >= 0:
                yield 1 + len(draft.tokens), seconds


def time_drafts(
    drafter: Drafter, vocab_size: int, context: int, repeats: int, *, budget: float
) -> list[Drafted]:
    """Drafts as (drafted, tokens read first, seconds), for the fit of a drafter's costs."""
    rng = Random(2)
    request = text(vocab_size, context, rng)
    seated(drafter, request)
    known = list(request.tokens)
    found: list[Drafted] = []
    began = perf_counter()
    for turn in range(-1, repeats):
        if turn > 1 and perf_counter() - began > budget:
            break
        for length in LENGTHS:
            for behind in BEHIND:
                drafted, seconds = _draft(drafter, request, known, length, behind)
                if turn >= 0:
                    found.append((drafted, behind, seconds))
    drafter.close(request)
    return found


def _draft(
    drafter: Drafter, request: Request, known: list[int], length: int, behind: int
) -> tuple[int, float]:
    """One draft after `behind` new tokens; the drafter has read all before them."""
    request.tokens = list(known)
    drafter.draft([Job(request, 1)])
    request.tokens = [*known, *known[:behind]]
    start = perf_counter()
    (made,) = drafter.draft([Job(request, length)])
    return len(made.tokens), perf_counter() - start
