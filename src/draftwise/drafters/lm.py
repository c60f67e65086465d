"""A smaller causal LM of the target's vocabulary drafts for any number of requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..rows import Rows
from ..sampling import draw, likeliest, warp, warpers
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
    With `sample` off it always drafts its likeliest tokens: fewer are accepted, but a seed then gives the
    same text whatever the policy does.
    """

    def __init__(self, model: Any, vocab_size: int, *, sample: bool = True) -> None:
        self.rows = Rows(model)
        self.vocab_size, self.sample = vocab_size, sample
        self.chunk = 96 if self.rows.device.type == "cpu" else 2048  # bounds the memory of long catch-ups
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
        """One chain per job; every row takes part in each pass until the last one has its draft."""
        chains = [Chain(job, needs(job.stops)) for job in jobs]
        logits, rows = self._catch_up([job.request for job in jobs])
        while True:
            picks = likeliest(logits if logits.shape[-1] <= self.vocab_size else logits[:, : self.vocab_size])
            for chain, row in zip(chains, rows, strict=True):
                if not chain.done:
                    self._extend(chain, logits[row], picks[row])
            if all(chain.done for chain in chains):
                return [self._made(chain) for chain in chains]
            logits = self._step(chains, rows)

    def _catch_up(self, requests: Sequence[Request]) -> tuple[Tensor, list[int]]:
        """Read every request up to its last token.

        Returns the logits after it, shape (rows, vocabulary), and each request's row.
        """
        for request in requests:
            if request.id not in self.places:
                self.rows.open(request.id)
                self.places[request.id] = Place()
        rows, held = self.rows.front([r.id for r in requests]), self.rows.held
        slots = max(len(r.tokens) + r.room for r in requests)
        texts: list[list[int]] = [[]] * len(requests)
        for row, request in zip(rows, requests, strict=True):
            tokens = request.tokens
            held[row] = min(self.places[request.id].matched(tokens), len(tokens) - 1)
            while len(tokens) - held[row] > (LONG if len(requests) > 1 else self.chunk):
                self.rows.feed(row, [tokens[held[row] : -1][: self.chunk]], 1, slots=slots)
            texts[row] = tokens[held[row] :]
            self.places[request.id] = Place(len(tokens))
        widths = [len(t) for t in texts]
        keep = 1 if len(texts) == 1 else max(widths) - min(widths) + 1
        logits = self.rows.feed(0, texts, keep, slots=slots)
        if keep == 1:
            return logits[:, 0], rows
        last = torch.tensor([keep - 1 - max(widths) + w for w in widths], device=logits.device)
        return logits[torch.arange(len(texts), device=logits.device), last], rows

    def _extend(self, chain: Chain, row: Tensor, pick: int) -> None:
        """Choose one more token, keep it, and see whether to stop after it."""
        job = chain.job
        if self._sampled(chain):
            q = self._law(job, row)
            pick = draw(q, job.request.rng.random())
            chain.dist.append(q)
            chain.probs.append(float(q[pick]))
        chain.tokens.append(pick)
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
        return self.sample and not chain.job.picked and not chain.job.request.sampling.greedy

    def _law(self, job: Job, row: Tensor) -> Tensor:
        """The distribution that the token is drawn from, over the target's vocabulary, float32."""
        q = warp(warpers(job.request.sampling), row[None, : self.vocab_size])[0]
        missing = self.vocab_size - len(q)
        return torch.nn.functional.pad(q, (0, missing)) if missing > 0 else q

    def _step(self, chains: Sequence[Chain], rows: list[int]) -> Tensor:
        """Feed each running chain its newest token; logits after it, shape (rows, vocabulary)."""
        texts = [[0]] * len(chains)
        for chain, row in zip(chains, rows, strict=True):
            texts[row] = chain.tokens[-1:]
        logits = self.rows.feed(0, texts, 1)[:, 0]
        for chain, row in zip(chains, rows, strict=True):
            if chain.done:
                self.rows.held[row] -= 1
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
