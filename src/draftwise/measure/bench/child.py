"""A peer in a process of its own: one JSON object per line, in both directions.

The first line tells the child what to load; the answer is `{"ready": {...}}` with the settings that it chose
itself. Each further line `{"ids", "max_new_tokens", "temperature", "seed", "eos"}` is answered by `{"tokens",
"seconds", "rounds", "drafted", "ttft_s"}` and, where the engine counts it, `"accepted"`; the child takes the
times.
Errors are answered by `{"error": ...}`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .contender import Generation, Item, Peer, Text

PATIENCE = 5.0  # seconds for a child to exit after it was asked to


class ChildError(RuntimeError):
    """The child reported an error, or stopped answering."""


class Child(Peer):
    """A contender in another process, one prompt at a time; `shown` replaces settings of `hello` in its note.

    Raises:
        ChildError: it could not load.
    """

    max_batch = 1

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

    @property
    def settings(self) -> dict[str, Any]:
        return self.given | self.ready

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        return [self._decode_one(item, generation) for item in items]

    def close(self) -> None:
        """Ask the process to exit, and kill it if it does not."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # one that has ended reads nothing more
                    pipe.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _decode_one(self, item: Item, generation: Generation) -> Text:
        answer = self._ask(
            {
                "ids": list(item.ids),
                "max_new_tokens": generation.max_new_tokens,
                "temperature": generation.temperature,
                "seed": generation.seed_of(item),
                "eos": sorted(self.eos),
            }
        )
        tokens = tuple(int(t) for t in answer["tokens"])
        rounds, drafted = int(answer["rounds"]), int(answer["drafted"])
        accepted = int(answer.get("accepted", max(0, len(tokens) - rounds)))
        return Text(tokens, float(answer["seconds"]), rounds, drafted, accepted, answer["ttft_s"])

    def _ask(self, line: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None  # they are pipes
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):
            reply = ""
        if not reply.endswith("\n"):
            raise ChildError(f"the process of {self.name} ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer


Write = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Writes one text as a line asks for it."""


def serve(load: Callable[[Mapping[str, Any]], tuple[Write, dict[str, Any]]]) -> None:
    """Be the child: load what the first line asks for, and answer each further line until the input ends.

    `load` returns the function that writes a text, and the settings that it chose. What the engine prints
    goes to stderr; only answers go to the parent process.
    """
    write: Write | None = None
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if write is None:
                    write, settings = load(request)
                    answer: dict[str, Any] = {"ready": settings}
                else:
                    answer = write(request)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
            print(json.dumps(answer), file=answers, flush=True)
