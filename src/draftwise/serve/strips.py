"""Who drafted for whom in the last rounds: a watcher of the engine while someone looks at the live page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..core.round import Round
from .engine import Engine
from .texts import Event, Text

KEPT = 4096  # rounds; beyond, the oldest are lost
MEMORY = 0.98  # with which a plain step fades at each one of the same batch


@dataclass(frozen=True, slots=True)
class Cell:
    """One round of one text, in numbers: who drafted, what was guessed, and what the target wrote itself."""

    request: int
    drafter: str
    drafted: int
    guessed: int
    own: int
    done: bool


@dataclass(slots=True)
class Step:
    """One step so far: its texts, their tokens and seconds, and whether it was plain decoding alone."""

    number: int = -1
    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    plain: bool = True


class Strips:
    """Keeps the last rounds, and how fast steps without any draft were; no text.

    The engine's thread writes and any other may `take`: what is not taken in time is lost, and counted.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.cells: deque[Cell] = deque(maxlen=KEPT)
        self.seen = self.taken = 0
        self.step = Step()
        self.plain: dict[int, tuple[float, float]] = {}  # by texts of the step: tokens, seconds

    def round(self, text: Text, round: Round, gap: float) -> None:
        """Note a round."""
        guessed, own = round.sources, len(round.tokens) - round.sources
        self.cells.append(Cell(round.request, round.arm.drafter, round.drafted, guessed, own, round.done))
        self.seen += 1
        if self.step.number != self.engine.steps:
            self._close()
            self.step = Step(self.engine.steps)
        step = self.step
        step.texts += 1
        step.tokens += len(round.tokens)
        step.seconds += round.seconds.total
        reads = text.stats.rounds <= 1  # the first round may read the prompt
        step.plain = step.plain and not round.drafted and not reads

    def end(self, text: Text, event: Event) -> None:
        """Note that a text has ended before its last round."""
        if text.request is not None:
            self.cells.append(Cell(text.request.id, "", 0, 0, 0, True))
            self.seen += 1

    def take(self) -> tuple[list[Cell], int]:
        """The cells since the last call, and how many were lost."""
        found = []
        while self.cells:
            found.append(self.cells.popleft())
        lost = self.seen - self.taken - len(found)
        self.taken += lost + len(found)
        return found, max(0, lost)

    def rate(self, texts: int) -> float | None:
        """Tokens per second of plain decoding with about so many texts; None if no such step was seen."""
        known = dict(self.plain)
        if not known:
            return None
        tokens, seconds = known[min(known, key=lambda n: abs(n - texts))]
        return tokens / seconds if seconds > 0.0 else None

    def _close(self) -> None:
        step = self.step
        if step.texts and step.plain:
            tokens, seconds = self.plain.get(step.texts, (0.0, 0.0))
            self.plain[step.texts] = (MEMORY * tokens + step.tokens, MEMORY * seconds + step.seconds)
