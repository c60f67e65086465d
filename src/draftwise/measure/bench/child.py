"""A peer in a process of its own: one JSON object per line, in both directions.

The first line tells the child what to load; the answer is `{"ready": {...}}` with the settings that it chose
itself. Each further line `{"ids", "max_new_tokens", "temperature", "seed", "eos"}` is answered by `{"tokens",
"seconds", "rounds", "drafted"}` and, where the engine counts it, `"accepted"`; the child takes the time.
Errors are answered by `{"error": ...}`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .contender import Generation, Item, Text

PATIENCE = 5.0  # seconds for a child to exit after it was asked to


class ChildError(RuntimeError):
    """The child reported an error, or stopped answering."""


class Child:
    """A contender in another process, one prompt at a time; `shown` replaces settings of `hello` in its note.

    Raises:
        ChildError: it could not load.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        hello: Mapping[str, Any],
        *,
        eos: frozenset[int],
        drafts: bool = False,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.engine, self.eos, self.drafts = name, name.partition(":")[0], eos, drafts
        self.given = {k: v for k, v in (dict(hello) | dict(shown or {})).items() if v is not None}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.ready: dict[str, Any] = self._ask(hello)["ready"]
        except BaseException:
            self.close()
            raise

    def most(self) -> int:
        """1: one prompt at a time."""
        return 1

    @property
    def settings(self) -> dict[str, Any]:
        """What it was asked for, and what it chose."""
        return self.given | self.ready

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        """Nothing to prepare."""

    def warm(self, items: Sequence[Item], generation: Generation) -> None:
        """One text for each prompt, discarded."""
        self.decode(items, generation)

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        """One text after the other."""
        return [self._text(item, generation) for item in items]

    def memory(self) -> Any:
        """Nothing is kept between texts."""
        return None

    def remember(self, memory: Any) -> None:
        """Nothing to restore."""

    def close(self) -> None:
        """Ask the process to exit, and kill it if it does not."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _text(self, item: Item, generation: Generation) -> Text:
        told = self._ask(
            {
                "ids": list(item.ids),
                "max_new_tokens": generation.max_new_tokens,
                "temperature": generation.temperature,
                "seed": generation.seed_of(item),
                "eos": sorted(self.eos),
            }
        )
        tokens = tuple(int(t) for t in told["tokens"])
        rounds, drafted = int(told["rounds"]), int(told["drafted"])
        accepted = int(told.get("accepted", max(0, len(tokens) - rounds)))
        return Text(tokens, float(told["seconds"]), rounds, drafted, accepted)

    def _ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None  # they are pipes
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):
            answer = ""
        if not answer:
            raise ChildError(f"the process of {self.name} ended with status {self.process.wait()}")
        told: dict[str, Any] = json.loads(answer)
        if "error" in told:
            raise ChildError(told["error"])
        return told
