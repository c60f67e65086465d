"""Fast contenders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from draftwise.measure.bench.contender import Contender, Generation, Item, Text
from draftwise.measure.bench.journal import Journal
from draftwise.measure.bench.peers import ENGINES
from draftwise.measure.bench.run import Progress, Runner
from draftwise.measure.bench.transformers import Transformers
from draftwise.measure.machine import Meter

LAW = Generation(8)


def transformers(
    kind: str, *models: Any, eos: frozenset[int], peer: Any = Transformers, **options: Any
) -> Any:
    """A mode of Transformers with some options of its own."""
    return peer(kind, kind, {**ENGINES["transformers"][kind], **options}, *models, eos=eos)


class Fake(Contender):
    """Counts its texts, and keeps the count from text to text."""

    engine = "fake"

    def __init__(self, name: str, *, seconds: float = 0.0, most: int = 0) -> None:
        self.name, self.seconds, self.max_batch = name, seconds, most
        self.count = 0
        self.warmed: list[list[int]] = []
        self.decoded: list[list[int]] = []

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        self.prepared = [[item.index for item in group] for group in groups]

    def warm(self, items: Sequence[Item], generation: Generation) -> None:
        self.warmed.append([item.index for item in items])

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        time.sleep(self.seconds)
        self.decoded.append([item.index for item in items])
        self.count += len(items)
        return [Text((item.index, self.count), 0.5, 2, 3, 1) for item in items]

    def memory(self) -> Any:
        return self.count

    def restore(self, memory: Any) -> None:
        self.count = memory


def prompts(n: int) -> list[Item]:
    return [Item(i, f"q{i}", "ab"[i % 2], (1, 2, 3)) for i in range(n)]


def play(
    folder: Path,
    contenders: Sequence[Contender],
    items: Sequence[Item],
    *,
    batches: Sequence[int] = (1,),
    tell: Callable[[Progress], None] = lambda at: None,
    tokenizer: Any = None,
    copy: Item | None = None,
    generation: Generation = LAW,
) -> Runner:
    """One run, or the rest of one."""
    with closing(Journal(folder, {"seed": 0}, load=0.0)) as journal:
        runner = Runner(contenders, items, generation, batches, journal, tokenizer, Meter(), tell, copy=copy)
        runner.run()
    return runner
