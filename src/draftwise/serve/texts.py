"""One text of the server, from its place in the queue to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..core.arms import Arm
from ..core.batch import Scored
from ..core.request import ENDLESS, Request
from ..core.round import Round, Tops
from ..core.sampling import Sampling
from ..core.stats import Stats
from ..generation.output import Writer
from ..generation.text import Detokenizer, Piece
from .refusal import Refusal


@dataclass(frozen=True, slots=True)
class Wish:
    """One text that a client asks for.

    Attributes:
        prompt: Its token ids.
        sampling: Its settings; `max_new_tokens` counts only where the text is `written`.
        stop: Its stop strings.
        without: Drafters that must not draft for it.
        longest: The longest draft, in tokens.
        picked: Whether the text must depend on its seed alone.
        scored: How many most likely tokens to report for each token of the prompt; None reads no prompt.
        written: Whether anything is written after the prompt.
        arm: How to draft for it, instead of what the policy decides.
        spoken: What turns its tokens into text, if not the decoder's tokenizer.
        keeps_stop: Whether the stop string that ends the text belongs to it.
    """

    prompt: list[int]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    without: Collection[str] = ()
    longest: int = ENDLESS
    picked: bool = False
    scored: int | None = None
    written: bool = True
    arm: Arm | None = None
    spoken: Any = None
    keeps_stop: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A token with its log-probability, those of the most likely ones, and where its text begins."""

    token: int
    logprob: float | None
    tops: Tops
    begin: int = 0


@dataclass(slots=True)
class Times:
    """When what happened to a text, in seconds of one clock; 0 where it has not."""

    arrived: float = field(default_factory=monotonic)
    joined: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Event:
    """What a step added to a text, which has `tokens` by then; the last one has a `reason` or a `refusal`."""

    place: int
    pieces: Sequence[Piece] = ()
    entries: Sequence[Entry] = ()
    reason: str = ""
    refusal: Refusal | None = None
    tokens: int = 0

    @property
    def text(self) -> str:
        """The text that was added."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return bool(self.reason) or self.refusal is not None


Sink = Callable[[Event], None]


@dataclass(slots=True, eq=False)
class Text:
    """A text that is waiting, running or over. The thread that owns the decoder is its only writer, except
    for `gone`, which any thread may set: its client has left."""

    wish: Wish
    place: int
    sink: Sink
    deadline: float
    seconds: float  # what the client may wait in all
    owner: tuple[str, str, int] = ("", "", 0)  # its client's address and user, and the number of its request
    times: Times = field(default_factory=Times)
    request: Request | None = None
    reading: bool = False
    paused: bool = False  # its row is another's for a while
    scoring: Any = None  # what is left of the prompt's scores
    scores: list[Scored] = field(default_factory=list)
    writer: Writer | None = None
    tokens: TokenLog | None = None
    stats: Stats = field(default_factory=Stats)
    histogram: dict[int, dict[int, int]] = field(default_factory=dict)  # steps by drafted and accepted tokens
    gone: bool = False
    over: bool = False

    @property
    def unread(self) -> bool:
        """Whether there is more to read of its prompt before it is written."""
        return self.reading or self.scoring is not None

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not read, since an earlier text begins alike."""
        return 0 if self.request is None else self.request.reused

    def begin(self, tokenizer: Any, request: Request) -> None:
        """The text has joined the batch as `request`."""
        self.request, tokenizer = request, self.wish.spoken or tokenizer
        self.writer = Writer(tokenizer, self.wish.stop, request.sampling.seed)
        self.writer.detokenizer.keeps_stop = self.wish.keeps_stop
        self.tokens = TokenLog(tokenizer) if self.wish.sampling.logprobs else None

    def add(self, round: Round) -> Event:
        """What one round adds."""
        writer, now = self.writer, monotonic()
        assert writer is not None
        self.times.first, self.times.last = self.times.first or now, now
        self.stats.add(round)
        if round.drafted:
            steps = self.histogram.setdefault(round.drafted, {})
            steps[round.accepted] = steps.get(round.accepted, 0) + 1
        pieces = writer.take(round)  # the totals are kept in `stats`: a long text has many rounds
        entries = self.tokens.add(round, pieces) if self.tokens else ()
        reason = round.finish_reason if round.done else ""
        return Event(self.place, pieces, entries, reason, tokens=self.stats.tokens)


class TokenLog:
    """The tokens of a text with their log-probabilities, each handed out together with its own text.

    Text may be held back while a stop string could begin in it; a token whose text is cut off is left out,
    and so is one that gives no text at the end of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.spoken = Detokenizer(tokenizer)
        self.written = self.given = 0
        self.held: list[tuple[Entry, int]] = []

    def add(self, round: Round, pieces: Sequence[Piece]) -> list[Entry]:
        """The entries whose text has been handed out by now."""
        tops = round.tops or ((),) * len(round.tokens)
        for token, logprob, top in zip(round.tokens, round.logprobs, tops, strict=True):
            begin = self.written
            self.written += sum(len(piece.text) for piece in self.spoken.push([token], ""))
            self.held.append((Entry(token, logprob, top, begin), self.written))
        self.given += sum(len(piece.text) for piece in pieces)
        if round.done:
            kept = [entry for entry, _ in self.held if entry.begin < self.given]
            self.held = []
            return kept
        n = sum(1 for _, end in self.held if end <= self.given)
        kept, self.held = [entry for entry, _ in self.held[:n]], self.held[n:]
        return kept
