"""The output of one text, collected from its rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO, getLogger
from time import perf_counter
from typing import Any

from ..core.round import Round, Stats
from .html import html
from .text import TARGET, Detokenizer, Piece

LOG = getLogger(__name__)
SHORT = 60  # characters of a text in a repr


@dataclass(slots=True)
class Output:
    """One finished text. If several samples were requested, `samples` holds all of them, this one first.

    `seed` is the seed of its random numbers; None for greedy text.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    finish_reason: str = ""
    logprobs: list[float] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    samples: list[Output] = field(default_factory=list)
    seed: int | None = None

    def __repr__(self) -> str:
        return f"Output({len(self.token_ids)} tokens, {self.finish_reason!r}, {shorten(self.text)!r})"

    def _repr_html_(self) -> str:
        """The text for notebooks: coloured by drafter, with the summary below."""
        return html(self.pieces, self.summary())

    def summary(self) -> str:
        """One line: speed, accepted tokens per round, and tokens by drafter."""
        stats = self.stats
        line = (
            f"{stats.tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_s:.1f} tokens/s, "
            f"{stats.mean_accepted:.2f} accepted a round; {drafted_by(stats.by_drafter, stats.tokens)}"
        )
        if self.logprobs:
            line += f"; log-probability {sum(self.logprobs):.2f}"
        if self.seed is not None:
            line += f"; seed {self.seed}"
        return line


def drafted_by(counts: Mapping[str, int], tokens: int) -> str:
    """Committed tokens by the drafter that proposed them, and the target's own, which come last."""
    own = tokens - sum(counts.values())
    return ", ".join(f"{name} {count}" for name, count in [*counts.items(), (TARGET, own)])


def shorten(text: str) -> str:
    """The beginning of a text, short enough for one line."""
    return text if len(text) <= SHORT else text[:SHORT] + "..."


class Writer:
    """Collects one request's rounds into an output; the text is decoded when it is asked for."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], seed: int | None = None) -> None:
        self.detokenizer, self.seed = Detokenizer(tokenizer, stop), seed
        self.rounds: list[Round] = []
        self.pieces: list[Piece] = []
        self.decoded = self.given = 0  # rounds, pieces
        self.error: Exception | None = None
        self.began = self.ended = perf_counter()

    def add(self, round: Round) -> None:
        """Add one round."""
        self.rounds.append(round)
        self.error = round.error
        self.ended = perf_counter()

    def _decode(self) -> None:
        """Decode the rounds that have not been."""
        for round in self.rounds[self.decoded :]:
            if round.sources:
                self.pieces += self.detokenizer.push(round.tokens[: round.sources], round.arm.drafter)
            if len(round.tokens) > round.sources:
                self.pieces += self.detokenizer.push(round.tokens[round.sources :], TARGET)
        self.decoded = len(self.rounds)

    def fresh(self) -> Iterator[Piece]:
        """The pieces that have not been returned yet."""
        self._decode()
        while self.given < len(self.pieces):
            self.given += 1
            yield self.pieces[self.given - 1]

    def take(self, round: Round) -> list[Piece]:
        """What one round adds; neither the round nor its pieces are kept."""
        self.add(round)
        pieces = [*self.fresh(), *(self.detokenizer.flush() if round.done else ())]
        self.rounds.clear()
        self.pieces.clear()
        self.decoded = self.given = 0
        return pieces

    def output(self) -> Output:
        """Everything written so far, as a finished text."""
        stats = Stats.of(self.rounds)
        stats.seconds = self.ended - self.began
        self._decode()
        self.pieces += self.detokenizer.flush()
        if LOG.isEnabledFor(INFO):
            arms = Counter(round.arm.name for round in self.rounds)
            played = ", ".join(f"{name} x{n}" for name, n in arms.most_common())
            LOG.info("request: %d tokens in %d rounds; arms: %s", stats.tokens, len(self.rounds), played)
        return Output(
            text="".join(p.text for p in self.pieces),
            token_ids=[t for r in self.rounds for t in r.tokens],
            rounds=self.rounds,
            stats=stats,
            finish_reason=self.rounds[-1].finish_reason if self.rounds else "",
            logprobs=[x for r in self.rounds for x in r.logprobs],
            pieces=self.pieces,
            seed=self.seed,
        )
