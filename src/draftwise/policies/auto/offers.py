"""What the drafters offer in a round: the draft of the highest worth of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ...core.arms import Context
from .candidates import (
    LENGTHS,
    NO_DRAFT,
    TAKEN,
    Candidate,
    Prefix,
    Price,
    best_cascade,
    best_length,
    best_up_to,
    steps,
    trial,
)
from .costs import DraftCost, PassCost, is_behind
from .state import AutoState, RequestState, rounds_left

TRIALS = (1, 1, 4)  # tokens of a drafter's first drafts: one untimed, then two lengths for start and slope
LONGEST_PASS = 1.5  # times a plain pass that the pass of a batch takes at most: other texts wait for it, too
FREE_TOKENS = [0.0] * (LENGTHS[-1] + 1)


def offers(policy: AutoState, context: Context, state: RequestState, passes: PassCost) -> list[Candidate]:
    """What every usable drafter is worth in this round, at its best length, where passes cost so much."""
    batch, rate = context.batch_size, state.price
    extra, room = passes.extra or passes.table(batch, LENGTHS[-1]), passes.room(batch)
    found: list[Candidate] = []
    for i, curve in _usable(policy, context, state, passes):
        if i in policy.cascades:
            found += _composite(policy, i, context, state, extra[: room + 1])
            continue
        cost = policy.draft_cost(i)
        more = extra if cost.width <= 1.0 else passes.table(batch, LENGTHS[-1], cost.width)
        if cost.tried < len(TRIALS):
            most = min(TRIALS[cost.tried], room)
            seconds = more[1] + _reading(policy, i, cost, context, state, curve)
            found.append(trial(i, most, curve, policy.lengths, rate * seconds))
            continue
        price = _priced(policy, i, cost, context, state, more, curve)
        found.append(best_length(i, curve[: max(1, int(room / cost.width))], price, rate, policy.lengths))
    return found


def together(policy: AutoState, contexts: Sequence[Context]) -> dict[int, list[Candidate]]:
    """Return what the drafters of each request are worth in a round that is planned for the whole batch.

    A call of a drafter takes as long as its longest draft: the first request that drafts pays for all, and
    the others draft as much for nothing. Where rows are padded to the longest, so does the pass. So the
    longest draft is chosen by the sum of what all requests gain within it, and a drafter is called if they
    gain more by it than the call takes. An empty list means no draft.

    Rows with as many tokens as they drafted pay what a token adds to the pass at present. No plain pass shows
    that this price has fallen: where nothing pays by it, drafts are planned as if tokens were free, and made
    if they gain more than their own pass takes.
    """
    batch = contexts[0].batch_size
    passes = policy.pass_cost(batch)
    if not passes(batch):  # nothing has a price yet
        return {context.request: [] for context in contexts}
    if not policy.padded:
        extra = passes.extra or passes.table(batch, LENGTHS[-1])
        found = _planned(policy, contexts, passes, extra)
        if any(found.values()):
            return found
    return _planned(policy, contexts, passes, FREE_TOKENS)


def _planned(
    policy: AutoState, contexts: Sequence[Context], passes: PassCost, extra: Sequence[float]
) -> dict[int, list[Candidate]]:
    """The best round where drafted tokens add `extra` to a pass; with `FREE_TOKENS` all pay for the pass.

    All next tokens wait for a padded pass, which is `LONGEST_PASS` times a plain one at most.
    """
    batch = contexts[0].batch_size
    plain, widths = passes(batch), _widths(policy, passes, batch)
    rates = [policy.price(batch, matched) for matched in (False, True)]
    found: dict[int, list[list[Candidate]]] = {}
    rate = 0.0
    for context in contexts:
        state = policy.update_request(context)
        state.price = rates[state.matched]
        rate += state.price / len(contexts)
        found[context.request] = _best_up_to_each(policy, context, state, passes, widths, extra)
    prices = [_call(policy.draft_cost(i), batch, rate) for i in range(len(policy.drafters))]
    best, most = {request: list[Candidate]() for request in found}, 0.0
    for k, width in enumerate(widths):
        offered = {request: [best_up_to[k] for best_up_to in drafts] for request, drafts in found.items()}
        gain = _called(offered, prices)
        seconds = 0.0
        if extra is FREE_TOKENS:
            seconds = passes(batch + (batch * width if policy.padded else _tokens(policy, offered))) - plain
        if gain - rate * seconds > most:
            best, most = offered, gain - rate * seconds
    return best


def _widths(policy: AutoState, passes: PassCost, batch: int) -> Sequence[int]:
    """Return the lengths that the longest draft of a batch may have."""
    room, longest = passes.room(batch), LONGEST_PASS * passes(batch)
    widths = [length for length in policy.lengths if length <= room] or policy.lengths[:1]
    return [n for n in widths if passes(batch * (1 + n)) <= longest] if policy.padded else widths


def _tokens(policy: AutoState, offered: Mapping[int, Sequence[Candidate]]) -> float:
    """Return how many tokens the drafts of highest gain add to a pass."""
    best = [
        max(candidates, key=lambda candidate: candidate.gain, default=NO_DRAFT)
        for candidates in offered.values()
    ]
    return sum(one.length * policy.draft_cost(one.drafter).width for one in best if one.gain > 0.0)


def _call(cost: DraftCost, batch: int, rate: float) -> tuple[float, float]:
    """Return tokens that a call of this drafter is worth: its start, and each token of its longest draft."""
    if cost.tried < len(TRIALS):
        return 0.0, 0.0
    start, each = cost.call(batch)
    return rate * start, rate * each


def _called(offered: dict[int, list[Candidate]], prices: Sequence[tuple[float, float]]) -> float:
    """Leave out the drafters whose calls cost more than they are worth; what all requests gain then."""
    while True:
        total, gains, longest = 0.0, [0.0] * len(prices), [0] * len(prices)
        for candidates in offered.values():
            first, second = NO_DRAFT, NO_DRAFT
            for candidate in candidates:
                if candidate.gain > first.gain:
                    first, second = candidate, first
                elif candidate.gain > second.gain:
                    second = candidate
            if first.drafter >= 0:
                total += first.gain
                gains[first.drafter] += first.gain - second.gain
                longest[first.drafter] = max(longest[first.drafter], first.length)
        costs = [start + each * n if n else 0.0 for (start, each), n in zip(prices, longest, strict=True)]
        lost = [cost - gain for cost, gain in zip(costs, gains, strict=True)]
        worst = max(range(len(lost)), key=lost.__getitem__)
        if lost[worst] <= 0.0:
            return total - sum(costs)
        for request, candidates in offered.items():
            offered[request] = [candidate for candidate in candidates if candidate.drafter != worst]


def _best_up_to_each(
    policy: AutoState,
    context: Context,
    state: RequestState,
    passes: PassCost,
    widths: Sequence[int],
    extra: Sequence[float],
) -> list[list[Candidate]]:
    """For each usable drafter, its best draft up to each of these lengths, where its call costs nothing."""
    found: list[list[Candidate]] = []
    for i, curve in _usable(policy, context, state, passes):
        cost = policy.draft_cost(i)
        if i in policy.cascades:
            found += [steps(candidate, widths) for candidate in _composite(policy, i, context, state, extra)]
        elif cost.tried < len(TRIALS):
            most = min(TRIALS[cost.tried], max(widths, default=1))
            unread = _unread(policy, i, context, state)
            read = cost.reading.each * unread if is_behind(unread, most, 1) else 0.0
            lost = state.price * (extra[1] + read)
            found.append(steps(trial(i, most, curve, policy.lengths, lost), widths))
        else:
            more = extra
            if cost.width > 1.0 and extra is not FREE_TOKENS:
                more = passes.table(context.batch_size, LENGTHS[-1], cost.width)
            within = curve[: max(widths, default=1)]
            price = _reading(policy, i, cost, context, state, within), 0.0, more
            nodes = cost.width if extra is FREE_TOKENS else 1.0
            found.append(best_up_to(i, curve, price, state.price, widths, nodes=nodes))
    return found


def _usable(
    policy: AutoState, context: Context, state: RequestState, passes: PassCost
) -> Iterator[tuple[int, Sequence[float]]]:
    """Return the drafters that may draft, with the chances that their first 1, 2, ... tokens are accepted.

    A lookup needs a match; a model that was never graded waits until the recorder has done that.
    """
    cascades, looks_up = policy.cascades, policy.looks_up
    slow = bool(cascades) and passes(context.batch_size) >= policy.cascades_from
    for i, name in enumerate(policy.drafters):
        if name in context.unavailable:
            continue
        if i in cascades:
            if slow:
                yield i, ()
        elif state.contexts[i] if looks_up[i] else policy.skills[i].seen:
            yield i, policy.skills[i].after(state.token, context.request, state.contexts[i])


def _priced(
    policy: AutoState,
    i: int,
    cost: DraftCost,
    context: Context,
    state: RequestState,
    extra: Sequence[float],
    curve: Sequence[float],
) -> Price:
    """Return what a draft of this drafter costs now."""
    start, each = cost.price(context.batch_size)
    reading = _reading(policy, i, cost, context, state, curve)
    return policy.pricing(start, each, reading, extra, policy.pass_cost(1))


def _reading(
    policy: AutoState, i: int, cost: DraftCost, context: Context, state: RequestState, curve: Sequence[float]
) -> float:
    """Seconds in which a model reads what it has not read, spread over the rounds that are left with it.

    They are priced by the rate of all time, reading included: no round of this text can make up for them.
    """
    unread = _unread(policy, i, context, state)
    if not unread:
        return 0.0
    share = policy.shares[i] * policy.skills[i].confidence
    rounds = rounds_left(policy.answer, context.position, 1.0 + sum(curve), share, context.remaining)
    return policy.pace.writing * cost.reading.each * unread / rounds


def _unread(policy: AutoState, i: int, context: Context, state: RequestState) -> int:
    """Return the tokens of the text that a model has not read."""
    return 0 if policy.looks_up[i] else max(0, context.length - state.read.get(i, 0))


def _composite(
    policy: AutoState, i: int, context: Context, state: RequestState, extra: Sequence[float]
) -> Sequence[Candidate]:
    """Return the best draft that a cascade's model begins, once its chances and costs are known."""
    first, request = policy.cascades[i], context.request
    cost = policy.draft_cost(first)
    known = policy.skills[first].seen and cost.tried >= len(TRIALS) and not policy.looks_up[first]
    if not known or policy.drafters[first] in context.unavailable or cost.width > 1.0:
        return ()
    curve = policy.skills[first].after(state.token, request, state.contexts[first])
    prefix = Prefix(curve, _priced(policy, first, cost, context, state, extra, curve))
    tails = partial(policy.skills[i].survival, request)
    taken = max(tails(TAKEN), default=policy.skills[i].least)
    return best_cascade(i, prefix, taken, tails, state.price, policy.lengths)
