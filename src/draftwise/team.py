"""The drafters of one loop, and what becomes of one that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from .roles import Drafter
from .types import Draft, Job, Request

EMPTY = Draft()


class Team:
    """Asks each drafter for its part, and takes out one that raises or breaks its contract.

    It is then out of the request it failed in, and after `strikes` faults out of use altogether. `open`
    holds the requests in progress, kept up to date by the loop.
    """

    def __init__(
        self, drafters: Mapping[str, Drafter], open: Mapping[int, Request], *, vocab_size: int, strikes: int
    ) -> None:
        self.drafters, self.open = dict(drafters), open
        self.vocab_size, self.strikes = vocab_size, strikes
        self.faults: dict[str, int] = dict.fromkeys(self.drafters, 0)
        self.broken: set[str] = set()

    def hints(self, request: Request) -> dict[str, float]:
        """One cheap score per drafter."""
        hints = {}
        for name, drafter in self.drafters.items():
            if name not in request.out:
                try:
                    hints[name] = drafter.hint(request)
                except Exception as error:
                    self.fault(name, request, _said(error))
        return hints

    def draft(
        self, jobs: Mapping[str, Sequence[tuple[int, Job]]], n: int, *, patience: float
    ) -> tuple[list[Draft], list[float], dict[int, str]]:
        """One call per drafter for all its jobs, each with its place in a batch of `n`.

        Returns drafts, seconds and what went wrong, by place. A faulty draft counts as an empty one, and
        one that took more than `patience` seconds as faulty. A call is charged to its jobs by the tokens
        that each got from it.
        """
        drafts, spent, faults = [EMPTY] * n, [0.0] * n, dict[int, str]()
        for name, mine in jobs.items():
            start = perf_counter()
            try:
                made = self.drafters[name].draft([job for _, job in mine])
                said = "" if len(made) == len(mine) else f"{len(made)} drafts for {len(mine)} requests"
            except Exception as error:
                made, said = [], _said(error)
            seconds = perf_counter() - start
            if seconds > patience:
                said = said or f"took {seconds:.1f} s for one draft"
            share = seconds / (len(mine) + sum(len(d.tokens) for d in made))
            for k, (i, job) in enumerate(mine):
                if fault := said or self._wrong(made[k], job):
                    faults[i], spent[i] = self.fault(name, job.request, fault), share
                else:
                    drafts[i], spent[i] = made[k], share * (1 + len(made[k].tokens))
        return drafts, spent, faults

    def observe(self, request: Request, new: Sequence[int]) -> str:
        """Tell every drafter what was committed; returns the first thing that went wrong, or nothing."""
        said = ""
        for name, drafter in self.drafters.items():
            if name not in request.out:
                try:
                    drafter.observe(request, new)
                except Exception as error:
                    fault = self.fault(name, request, _said(error))
                    said = said or fault
        return said

    def close(self, request: Request) -> None:
        """Let every drafter forget a request."""
        for name, drafter in self.drafters.items():
            try:
                drafter.close(request)
            except Exception as error:
                self.fault(name, request, _said(error))

    def fault(self, name: str, request: Request, said: str) -> str:
        """Take a drafter out of a request, and after repeated faults out of use."""
        request.out.add(name)
        self.faults[name] += 1
        if self.faults[name] >= self.strikes:
            self.broken.add(name)
            for other in self.open.values():
                other.out.add(name)
        return f"{name}: {said}"

    def _wrong(self, draft: Draft, job: Job) -> str:
        """How a draft breaks its contract, or nothing."""
        n = len(draft.tokens)
        most = job.length * job.width
        if n > most:
            return f"{n} tokens where {most} were asked for"
        if n and not (min(draft.tokens) >= 0 and max(draft.tokens) < self.vocab_size):
            return f"a token outside the vocabulary of {self.vocab_size}"
        if len(draft.parents) != n or any(not -1 <= p < i for i, p in enumerate(draft.parents)):
            return "parents that are not earlier nodes"
        if draft.dist is not None and len(draft.probs) != n:
            return f"{len(draft.probs)} probabilities for {n} sampled tokens"
        if not all(0.0 <= p <= 1.000001 for p in draft.probs):  # false for NaN too
            return "a probability outside [0, 1]"
        return ""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
