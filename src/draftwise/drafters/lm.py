"""A smaller causal LM of the target's vocabulary drafts for any number of requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..rows import Rows
from ..sampling import draw, warp, warpers
from ..stops import needs, stop
from ..types import Draft, Job, Request, Signals

LONG = 16  # pending tokens from which a row catches up in a pass of its own


@dataclass(slots=True)
class Chain:
    """One draft in the making."""

    job: Job
    needs: frozenset[str]
    tokens: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    dist: list[Tensor] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)
    joint: float = 1.0
    done: bool = False


@dataclass(slots=True)
class Place:
    """What a row holds: the request's first `base` tokens, then the drafted tokens `fed`."""

    base: int = 0
    fed: list[int] = field(default_factory=list)

    def matched(self, tokens: Sequence[int]) -> int:
        """How much of it is still the request's text."""
        same = self.base
        for token in self.fed:
            if same >= len(tokens) or tokens[same] != token:
                break
            same += 1
        return same


class LMDrafter:
    """Drafts with a causal LM, sampled where the request samples and its likeliest tokens where it is greedy.

    A request that it was not asked about for a while is read up to date in one pass, when it is asked again.
    With `sample` off it always drafts its likeliest tokens: fewer are accepted, but a seed then gives the same
    text whatever the policy does.
    """

    def __init__(self, model: Any, vocab_size: int, *, sample: bool = True) -> None:
        self.rows = Rows(model)
        self.vocab_size, self.sample = vocab_size, sample
        self.places: dict[int, Place] = {}

    def hint(self, request: Request) -> float:
        """Always ready."""
        return 1.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Nothing yet: the request's own tokens are read when a draft is wanted."""

    def close(self, request: Request) -> None:
        """Free the request's row."""
        if self.places.pop(request.id, None) is not None:
            self.rows.close(request.id)

    @torch.inference_mode()
    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """One chain per job; the rows of a pass are those that still draft, longest first."""
        order = sorted(range(len(jobs)), key=lambda i: -jobs[i].length)
        chains = [Chain(jobs[i], needs(jobs[i].stops)) for i in order]
        logits = self._catch_up(chains)
        greedy = not any(self._sampled(c) for c in chains)
        while True:
            picks = logits.argmax(-1).tolist() if greedy else []
            for i, chain in enumerate(chains):
                if not chain.done and i < len(logits):
                    self._extend(chain, logits[i], picks[i] if greedy else -1)
            running = max((i + 1 for i, c in enumerate(chains) if not c.done), default=0)
            if running == 0:
                break
            logits = self._step(chains[:running])
        drafts = [self._made(c) for c in chains]
        return [drafts[order.index(i)] for i in range(len(jobs))]

    def _catch_up(self, chains: Sequence[Chain]) -> Tensor:
        """Read every request up to its last token; logits after it, shape (rows, vocabulary)."""
        rows, held = self.rows, self.rows.held
        requests = [c.job.request for c in chains]
        for request in requests:
            if request.id not in self.places:
                rows.open(request.id)
                self.places[request.id] = Place()
        rows.arrange([r.id for r in requests])
        slots = max(len(r.tokens) + r.room for r in requests)
        for row, request in enumerate(requests):
            held[row] = min(self.places[request.id].matched(request.tokens), len(request.tokens) - 1)
            if len(requests) > 1 and len(request.tokens) - held[row] > LONG:
                rows.feed(row, [request.tokens[held[row] : -1]], 1, slots=slots)
        texts = [r.tokens[held[i] :] for i, r in enumerate(requests)]
        widest = max(map(len, texts))
        keep = 1 if len(texts) == 1 else widest - min(map(len, texts)) + 1
        logits = rows.feed(0, texts, keep, slots=slots)
        for request in requests:
            self.places[request.id] = Place(len(request.tokens))
        if keep == 1:
            return logits[:, 0]
        last = torch.tensor([keep - 1 - (widest - len(t)) for t in texts], device=logits.device)
        return logits[torch.arange(len(texts), device=logits.device), last]

    def _extend(self, chain: Chain, row: Tensor, pick: int) -> None:
        """Choose one more token, keep it, and see whether to stop after it."""
        job, q = chain.job, None
        if self._sampled(chain):
            q = self._law(job, row)
            pick = draw(q, job.request.rng.random())
        elif pick < 0 or pick >= self.vocab_size:
            pick = int(row[: self.vocab_size].argmax())
        chain.tokens.append(pick)
        if q is not None:
            chain.dist.append(q)
            chain.probs.append(float(q[pick]))
        position = len(chain.tokens) - 1
        chain.done = len(chain.tokens) >= job.length
        if chain.needs:
            signals = _signals(row[: self.vocab_size], pick, chain.needs)
            previous = chain.signals[-1] if chain.signals else None
            chain.signals.append(signals)
            chain.joint *= signals.chosen
            rule = job.stop_at(position)
            chain.done |= stop(rule, signals, position=position, previous=previous, joint=chain.joint)

    def _sampled(self, chain: Chain) -> bool:
        return self.sample and not chain.job.request.sampling.greedy

    def _law(self, job: Job, row: Tensor) -> Tensor:
        """The distribution that the token is drawn from, over the target's vocabulary, float32."""
        q = warp(warpers(job.request.sampling), row[None, : self.vocab_size])[0]
        missing = self.vocab_size - len(q)
        return torch.nn.functional.pad(q, (0, missing)) if missing > 0 else q

    def _step(self, chains: Sequence[Chain]) -> Tensor:
        """Feed each running chain its newest token; logits after it, shape (rows, vocabulary)."""
        held = self.rows.held
        texts = [[c.tokens[-1]] for c in chains]
        before = held[: len(chains)]
        logits = self.rows.feed(0, texts, 1)[:, 0]
        for i, chain in enumerate(chains):
            if chain.done:
                held[i] = before[i]
            else:
                self.places[chain.job.request.id].fed.append(chain.tokens[-1])
        return logits

    def _made(self, chain: Chain) -> Draft:
        return Draft.chain(chain.tokens, probs=chain.probs, dist=chain.dist or None, signals=chain.signals)


def _signals(row: Tensor, pick: int, wanted: frozenset[str]) -> Signals:
    """The stop signals of the raw softmax at temperature 1; what no rule reads is left at 0."""
    logp = row.float().log_softmax(-1)
    top = logp.topk(2).values.exp().tolist() if wanted & {"top1", "top2"} else (0.0, 0.0)
    entropy = float(-(logp.exp() * logp).nansum()) if "entropy" in wanted else 0.0
    return Signals(top[0], top[1], entropy, float(logp[pick].exp()))
