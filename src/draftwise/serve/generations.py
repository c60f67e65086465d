"""One sequence of the server, from its place in the queue to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

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
        # One that gives no text waits too: it may be at the end.
        n = sum(1 for entry, end in self.waiting if end <= self.released > entry.offset)
        entries, self.waiting = [entry for entry, _ in self.waiting[:n]], self.waiting[n:]
        return entries


# -- who is next --------------------------------------------------------------------------------------


RowCounts: TypeAlias = Counter[tuple[str | int, ...]]
LEVELS = (1, 2, 3)  # an address, one of its users, one of the user's requests
OPEN = 2  # times the sequences of a batch: what may be open, those that are paused included
SLOWDOWN = 1.25  # times the seconds of a step that drafts chosen by clients may make of it
PLAIN_EVERY = 16  # steps of which one is without such drafts
MAX_DRAFT = 128  # tokens of such a draft


class Client(NamedTuple):
    """Who asks: an address, and the user that it names. An address gains nothing by naming several."""

    address: str = ""
    user: str = ""


NOBODY = Client()


def give_row(running: Sequence[Generation], waiting: Sequence[Generation], batch: int) -> Generation | None:
    """Return the sequence that gets one of `batch` rows next, for which another one may be paused; None if
    the rows stay as they are."""
    active = [sequence for sequence in running if not sequence.is_paused]
    candidates = [*(sequence for sequence in running if sequence.is_paused), *waiting]
    if not candidates:
        return None
    rows: RowCounts = Counter(sequence.owner[:level] for sequence in active for level in LEVELS)
    # Of the address that has the fewest rows, there of the user and of the request with the fewest; a paused
    # one first, and then the first to arrive.
    chosen = min(candidates, key=lambda sequence: (*_rows_of(sequence, rows), not sequence.is_paused))
    if len(active) >= batch:
        other = sequence_to_pause(active, chosen, rows)
        if other is None or not (chosen.is_paused or len(running) < OPEN * batch):
            return None
        other.is_paused = True
    chosen.is_paused = False
    return chosen


def sequence_to_pause(
    active: Sequence[Generation], candidate: Generation, rows: RowCounts
) -> Generation | None:
    """Return the sequence whose row `candidate` gets, the last one of the address with most, there of the
    user and of the request with most; None if sharing the rows that way would be no fairer."""

    def lead(sequence: Generation) -> int:
        """Return how many more rows it has, on the first level on which the two differ."""
        for level in LEVELS:
            if sequence.owner[:level] != candidate.owner[:level]:
                return rows[sequence.owner[:level]] - rows[candidate.owner[:level]]
        return 0

    richest = max(reversed(active), key=lambda sequence: (lead(sequence), *_rows_of(sequence, rows)))
    return richest if lead(richest) > 1 else None


def _rows_of(sequence: Generation, rows: RowCounts) -> list[int]:
    return [rows[sequence.owner[:level]] for level in LEVELS]


def next_prompt(sequences: Sequence[Generation], turn: int) -> Generation:
    """Return the sequence whose prompt is read next: by turns the one that joined first, so that none waits
    forever, and the one with the shortest prompt, so that long ones do not hold it up."""
    return sequences[0] if turn % 2 else min(sequences, key=lambda sequence: len(sequence.spec.prompt))


@dataclass(slots=True)
class DraftLimit:
    """The longest draft that a client may choose itself in a step that writes other requests' texts as well.

    It rises by a token with every step, and is halved by one that takes `SLOWDOWN` times as long as those
    without such drafts; one step in `PLAIN_EVERY` is without, so that their seconds stay known.
    """

    length: int = 1
    plain_seconds: float = 0.0
    steps: int = 0

    def apply(self, active: Sequence[Generation]) -> int | None:
        """Limit the drafts of a step with these sequences; return the limit, None if there is none."""
        chosen = [sequence for sequence in active if sequence.spec.arm is not None]
        limit = None
        if chosen and len({sequence.owner for sequence in active}) > 1:
            self.steps += 1
            limit = 0 if self.steps % PLAIN_EVERY == 1 else self.length
        for sequence in chosen:
            if sequence.request is not None:
                bound = ENDLESS if limit is None else limit
                sequence.request.max_draft = min(bound, sequence.spec.max_draft)
        return limit

    def add(self, limit: int | None, seconds: float) -> None:
        """Learn the seconds of a step with this limit."""
        if limit == 0:
            self.plain_seconds += (0.25 if self.plain_seconds else 1.0) * (seconds - self.plain_seconds)
            if self.steps % PLAIN_EVERY == 1:  # it may pay again
                self.length = max(1, self.length)
        elif limit is not None and seconds > SLOWDOWN * self.plain_seconds:
            self.length //= 2
        elif limit is not None:
            self.length = min(self.length + 1, MAX_DRAFT)
