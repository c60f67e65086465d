"""One sequence of the server, from its place in the queue to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from ..core.arms import Arm
from ..core.batch import Scored
from ..core.request import ENDLESS, Request
from ..core.round import Round, Stats, Tops
from ..core.sampling import Sampling
from ..generation.output import Writer
from ..generation.text import Detokenizer, Piece
from .errors import APIError


@dataclass(slots=True, eq=False)
class PromptScores:
    """What the target thinks of each token of a prompt but the first, read once for all samples of it.

    With each come the `top` most likely tokens.
    """

    top: int
    scores: list[Scored] = field(default_factory=list)
    reading: Any = None  # the rest of them, while they are read

    def read(self, loop: Any, prompt: Sequence[int]) -> bool:
        """Read the next piece; return False if nothing was left."""
        most = len(prompt) - 1
        if len(self.scores) == most:
            return False
        self.reading = self.reading or loop.score(prompt, self.top)
        self.scores += next(self.reading)
        if len(self.scores) == most:
            self._close()
        return True

    def stop(self) -> None:
        """Drop what is not complete: another sample begins again."""
        if self.reading is not None:
            self.scores.clear()
            self._close()

    def _close(self) -> None:
        reading, self.reading = self.reading, None
        reading.close()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence that a client asks for.

    Attributes:
        prompt: Its token ids.
        sampling: Its settings; `max_new_tokens` counts only if it `has_output`.
        stop: Its stop strings.
        excluded: Drafters that must not draft for it.
        max_draft: The longest draft, in tokens.
        is_deterministic: The text must depend on its seed alone.
        prompt_scores: The scores of the prompt's tokens, which are read first; None: no scores.
        has_output: Something is written after the prompt.
        arm: How to draft for it, instead of what the policy decides.
        tokenizer: Decodes its tokens instead of the decoder's tokenizer.
        keeps_stop: The stop string that ends the text belongs to it.
    """

    prompt: list[int]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    excluded: Collection[str] = ()
    max_draft: int = ENDLESS
    is_deterministic: bool = False
    prompt_scores: PromptScores | None = None
    has_output: bool = True
    arm: Arm | None = None
    tokenizer: Any = None
    keeps_stop: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability, those of the most likely ones, and where its text begins."""

    token: int
    logprob: float | None
    tops: Tops
    offset: int = 0


@dataclass(slots=True)
class Times:
    """When what happened to a sequence, in seconds of one clock; 0 where it has not."""

    arrived: float = field(default_factory=monotonic)
    joined: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Event:
    """The addition of a step to a sequence, which has `tokens` by then; the last one has a `finish_reason` or
    an `error`."""

    index: int
    pieces: Sequence[Piece] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: str = ""
    error: APIError | None = None
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def is_last(self) -> bool:
        return bool(self.finish_reason) or self.error is not None


Emit = Callable[[Event], None]


def merge_events(events: Sequence[Event]) -> Event:
    """Return all events of a sequence as one."""
    pieces = [piece for event in events for piece in event.pieces]
    logprobs = [entry for event in events for entry in event.logprobs]
    return replace(events[-1], pieces=pieces, logprobs=logprobs)


@dataclass(slots=True, eq=False)
class Generation:
    """A sequence that is waiting, running or over. The thread that owns the decoder is its only writer, but
    any thread may set `is_abandoned`: its client has left."""

    spec: GenerationRequest
    index: int
    emit: Emit
    deadline: float
    owner: tuple[str, str, int] = ("", "", 0)  # its client's address and user, and the number of its request
    times: Times = field(default_factory=Times)
    request: Request | None = None
    is_prefilling: bool = False
    is_paused: bool = False  # its row is another's for a while
    is_scoring: bool = False  # its prompt's scores are not complete
    writer: Writer | None = None
    token_log: TokenLog | None = None
    stats: Stats = field(default_factory=Stats)
    histogram: Counter[tuple[int, int]] = field(
        default_factory=Counter
    )  # steps by drafted and accepted tokens
    is_abandoned: bool = False
    is_over: bool = False

    @property
    def reads_prompt(self) -> bool:
        """True while there is more to read of its prompt before it is written."""
        return self.is_prefilling or self.is_scoring

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not read, since an earlier text begins alike."""
        return 0 if self.request is None else self.request.reused

    def begin(self, tokenizer: Any, request: Request) -> None:
        """Join the batch as `request`."""
        self.request, tokenizer, self.is_prefilling = request, self.spec.tokenizer or tokenizer, True
        self.writer = Writer(tokenizer, self.spec.stop, request.sampling.seed)
        self.writer.detokenizer.keeps_stop = self.spec.keeps_stop
        self.token_log = TokenLog(tokenizer) if self.spec.sampling.logprobs else None

    def add(self, round: Round) -> Event:
        """Add one round; return what it adds to the answer."""
        writer, now = self.writer, monotonic()
        assert writer is not None
        self.times.first, self.times.last = self.times.first or now, now
        self.stats.add(round)
        if round.drafted:
            self.histogram[round.drafted, round.accepted] += 1
        pieces = writer.take(round)  # the totals are kept in `stats`: a long text has many rounds
        logprobs = self.token_log.add(round, pieces) if self.token_log else ()
        finish_reason = round.finish_reason if round.done else ""
        return Event(self.index, pieces, logprobs, finish_reason, tokens=self.stats.tokens)


class TokenLog:
    """The tokens of a text with their log-probabilities, each handed out together with its own text.

    Text may be held back while a stop string could begin in it; a token whose text is cut off is left out,
    and so is one that gives no text at the end of it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.detokenizer = Detokenizer(tokenizer)
        self.decoded = self.released = 0  # characters
        self.waiting: list[tuple[TokenLogprob, int]] = []  # with the end of their texts

    def add(self, round: Round, pieces: Sequence[Piece]) -> list[TokenLogprob]:
        """Return the entries whose text has been handed out by now."""
        tops = round.tops or ((),) * len(round.tokens)
        for token, logprob, top in zip(round.tokens, round.logprobs, tops, strict=True):
            entry = TokenLogprob(token, logprob, top, self.decoded)
            self.decoded += sum(len(piece.text) for piece in self.detokenizer.push([token], ""))
            self.waiting.append((entry, self.decoded))
        self.released += sum(len(piece.text) for piece in pieces)
        if round.done:
            return [entry for entry, _ in self.waiting if entry.offset < self.released]
        n = sum(1 for _, end in self.waiting if end <= self.released)
        entries, self.waiting = [entry for entry, _ in self.waiting[:n]], self.waiting[n:]
        return entries
