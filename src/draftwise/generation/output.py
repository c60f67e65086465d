"""The output of one text, collected from its rounds, and its HTML for notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from logging import INFO, getLogger
from time import perf_counter
from typing import Any

from ..core.round import Round, Stats
from ..errors import pluralize
from .text import TARGET, Detokenizer, Piece

LOG = getLogger(__name__)
SHORT = 60  # characters of a text in a repr
# Translucent, so that the theme's text colour stays readable; distinguishable by the colour-blind.
COLOURS = ("0,114,178", "230,159,0", "0,158,115", "204,121,167", "86,180,233", "213,94,0")


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
        text = self.text if len(self.text) <= SHORT else self.text[:SHORT] + "..."
        return f"Output({pluralize(len(self.token_ids), 'token')}, {self.finish_reason!r}, {text!r})"

    def _repr_html_(self) -> str:
        """The text for notebooks: coloured by drafter, with the summary below."""
        return to_html(self.pieces, self.summary())

    def summary(self) -> str:
        """Return one line: speed, accepted tokens per round, and tokens by drafter."""
        stats = self.stats
        line = (
            f"{pluralize(stats.tokens, 'token')} in {stats.seconds:.2f} s, "
            f"{stats.tokens_per_s:.1f} tokens/s, {stats.mean_accepted:.2f} accepted a round; "
            f"{drafted_by(stats.by_drafter, stats.tokens)}"
        )
        if self.logprobs:
            line += f"; log-probability {sum(self.logprobs):.2f}"
        if self.seed is not None:
            line += f"; seed {self.seed}"
        return line


def drafted_by(counts: Mapping[str, int], tokens: int) -> str:
    """Return committed tokens by the drafter that proposed them, and the target's own, which come last."""
    own = tokens - sum(counts.values())
    return ", ".join(f"{name} {count}" for name, count in [*counts.items(), (TARGET, own)])


class Writer:
    """Collects one request's rounds into an output; the text is decoded when it is asked for."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], seed: int | None = None) -> None:
        self.detokenizer, self.seed = Detokenizer(tokenizer, stop), seed
        self.rounds: list[Round] = []
        self.pieces: list[Piece] = []
        self.decoded = self.returned = 0  # rounds, pieces
        self.error: Exception | None = None
        self.finished: Output | None = None
        self.start = self.ended = perf_counter()

    def add(self, round: Round) -> None:
        self.rounds.append(round)
        self.error = round.error
        self.ended = perf_counter()

    def _decode(self) -> None:
        for round in self.rounds[self.decoded :]:
            if round.sources:
                self.pieces += self.detokenizer.push(round.tokens[: round.sources], round.arm.drafter)
            if len(round.tokens) > round.sources:
                self.pieces += self.detokenizer.push(round.tokens[round.sources :], TARGET)
        self.decoded = len(self.rounds)

    def fresh(self) -> Iterator[Piece]:
        """Yield the pieces that have not been returned yet."""
        self._decode()
        while self.returned < len(self.pieces):
            self.returned += 1
            yield self.pieces[self.returned - 1]

    def take(self, round: Round) -> list[Piece]:
        """Return the pieces of one round; neither the round nor its pieces are kept."""
        self.add(round)
        pieces = [*self.fresh(), *(self.detokenizer.flush() if round.done else ())]
        self.rounds.clear()
        self.pieces.clear()
        self.decoded = self.returned = 0
        return pieces

    def output(self) -> Output:
        """Return everything written so far, as a finished text; later calls return the same."""
        if self.finished is not None:
            return self.finished
        stats = Stats.of(self.rounds)
        stats.seconds = self.ended - self.start
        self._decode()
        self.pieces += self.detokenizer.flush()
        if LOG.isEnabledFor(INFO):
            arms = Counter(round.arm.name for round in self.rounds)
            arm_counts = ", ".join(f"{name} x{n}" for name, n in arms.most_common())
            tokens, rounds = pluralize(stats.tokens, "token"), pluralize(len(self.rounds), "round")
            LOG.info("request: %s in %s; arms: %s", tokens, rounds, arm_counts)
        self.finished = Output(
            text="".join(p.text for p in self.pieces),
            token_ids=[t for r in self.rounds for t in r.tokens],
            rounds=self.rounds,
            stats=stats,
            finish_reason=self.rounds[-1].finish_reason if self.rounds else "",
            logprobs=[x for r in self.rounds for x in r.logprobs],
            pieces=self.pieces,
            seed=self.seed,
        )
        return self.finished


def to_html(pieces: Sequence[Piece], closing: str) -> str:
    """Return the escaped text with each drafter's tokens in a colour, a legend and the summary line."""
    drafters = sorted({piece.source for piece in pieces} - {TARGET})
    styles = {
        name: f"background:rgba({COLOURS[i % len(COLOURS)]},.3);border-radius:2px"
        for i, name in enumerate(drafters)
    }
    body = ""
    for piece in pieces:
        text, source = escape(piece.text), piece.source
        style = styles.get(source)
        body += f"<span style='{style}' title='{escape(source)}'>{text}</span>" if style else text
    names = [f"<span style='{style}'>{escape(name)}</span>" for name, style in styles.items()]
    legend = " ".join([*names, TARGET])
    return (
        f"<div style='white-space:pre-wrap;overflow-wrap:anywhere'>{body}</div>"
        f"<div style='opacity:.7;font-size:smaller;margin-top:.5em'>{legend} &middot; {escape(closing)}</div>"
    )
