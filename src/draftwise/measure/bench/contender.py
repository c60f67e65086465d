"""What a benchmark compares: anything that continues a prompt and reports its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ...core.round import Round
from ..results import Row


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt to decode: its index in the workload, and its token ids."""

    index: int
    question_id: int | str
    category: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of one contender: the token ids after the prompt, end tokens included, and the time.

    `rounds` is the number of target passes and `accepted` counts committed draft tokens. `ttft_s` are the
    seconds until the first tokens, which are `first_tokens` together; None in a batch. For our own methods
    `log` has every round, `signals` what else `rounds.jsonl` has of it, and accepted tokens count before the
    text is cut at its end.
    """

    tokens: tuple[int, ...]
    seconds: float
    rounds: int
    drafted: int = 0
    accepted: int = 0
    ttft_s: float | None = None
    first_tokens: int = 1
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    pulls: Mapping[str, int] = field(default_factory=dict)
    log: tuple[Round, ...] = ()
    signals: tuple[Row, ...] = ()

    @property
    def sha(self) -> str:
        return sha256(" ".join(map(str, self.tokens)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Generation:
    """The sampling settings of all contenders: maximum tokens, temperature (0 = greedy), and a seed per
    prompt.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0

    def seed_of(self, item: Item) -> int:
        """The seed of one prompt, the same for every contender."""
        return self.seed * 1_000_003 + item.index


class Contender:
    """One method of decoding, with the method name and engine of its rows in the results."""

    name: str
    engine: str
    max_batch = 0  # prompts that it takes at a time; 0 is any number

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        """Write all texts in one batch, one per prompt; their seconds add up to the elapsed time."""
        raise NotImplementedError

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        """Do what these groups of prompts need once, such as compiling passes of their lengths."""

    def warm(self, items: Sequence[Item], generation: Generation) -> None:
        """Run every code path once, and keep nothing of it."""
        self.decode(items, generation)

    def begin(self, texts: Sequence[tuple[Item, Sequence[int]]]) -> None:
        """Forget all texts but these: those that an interrupted run has finished at this batch size."""

    def memory(self) -> Any:
        """Return what it keeps between texts, as JSON."""
        return None

    def restore(self, memory: Any) -> None:
        """Restore what `memory` returned."""


class Peer(Contender):
    """A contender of another engine, which may draft."""

    drafts: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings, after the engine has chosen, as JSON."""
        raise NotImplementedError
