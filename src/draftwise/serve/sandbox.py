"""Compiles what clients send in processes of their own, bounded in seconds and in memory.

`python -m draftwise.serve.sandbox` knows the vocabulary, imports no torch and forks a process for each
grammar. A process ends at its bounds, or with its connection.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from weakref import finalize

from ..errors import one_line
from .forms import Form, compile_form

SECONDS = 1.5  # of a processor
MEMORY = 256 << 20  # bytes besides the vocabulary
READY = b"+"
STATM = Path("/proc/self/statm")  # sizes of this process in pages; the sixth is that of its data
NICENESS = 5  # the texts that are written come first


class Connection:
    """A connection to a process that compiles one grammar; closing it ends the process."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def close(self) -> None:
        """End the process, in whatever state it is."""
        with suppress(OSError):  # it is closed already
            self.ours.shutdown(socket.SHUT_RDWR)
        self.ours.close()
        self.theirs.close()

    def ask(self, question: dict[str, Any]) -> dict[str, str]:
        """Send a question and return the answer; empty if the process ended without one."""
        self.theirs.close()  # the process has its own copy: when it ends, so does the answer
        with suppress(OSError, ValueError):
            self.ours.sendall(json.dumps(question).encode() + b"\n")
            with self.ours.makefile("rb") as answers:
                answer: dict[str, str] = json.loads(answers.readline())
                return answer
        return {}


class Sandbox:
    """Starts the processes that compile, for one vocabulary: an `LLTokenizer`.

    Each has so many `seconds` of a processor, and bytes of `memory` besides the vocabulary.
    """

    def __init__(self, tokens: Any, *, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.tokens, self.seconds, self.memory, self._lock = tokens, seconds, memory, Lock()
        self.special = [i for i in range(tokens.vocab_size) if tokens.is_special_token(i)]
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._end: Callable[[], Any] | None = None

    def compile(self, form: Form, connection: Connection) -> str:
        """Return the grammar of a form in llguidance's own notation; it compiles within the bounds.

        Raises:
            ValueError: it does not, or cannot be obeyed.
        """
        with self._lock:
            socket.send_fds(self._started(), [READY], [connection.theirs.fileno()])
        answer = connection.ask({"form": form, "seconds": self.seconds, "memory": self.memory})
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        if "grammar" not in answer:
            bounds = f"{self.memory >> 20} MiB or {self.seconds:g} seconds"
            raise ValueError(
                answer.get("error", f"it grows beyond {bounds} while it is compiled: make it smaller")
            )
        return answer["grammar"]

    def close(self) -> None:
        """End the process that forks."""
        with self._lock:
            if self._end is not None:
                self._end()

    def _started(self) -> socket.socket:
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._control, theirs = socket.socketpair()
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-m", f"{__package__}.sandbox"]
            with theirs:  # in a session of its own: the keyboard's Ctrl-C is not for it
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
            self._end = finalize(self, end_process, self._control, self._process)
            told = json.dumps(self._vocabulary()).encode()
            self._control.sendall(len(told).to_bytes(8, "big") + told)
            if self._control.recv(1) != READY:
                self._end()
                raise RuntimeError("the process that compiles grammars did not start: its error is above")
        return self._control

    def _vocabulary(self) -> dict[str, Any]:
        """Return what `Words` needs."""
        texts = [self.tokens.decode_bytes([i]).hex() for i in range(self.tokens.vocab_size)]
        return {"tokens": texts, "special": self.special, "ends": self.tokens.eos_tokens}


def end_process(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the process that forks, which ends with its connection."""
    control.close()
    process.wait()


class Words:
    """A vocabulary without its tokenizer, as llguidance reads it: of a text it takes the longest tokens."""

    bos_token_id = None

    def __init__(self, told: dict[str, Any]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self.tokens = [bytes.fromhex(token) for token in told["tokens"]]
        self.special_token_ids, self.eos_token_id = told["special"], told["ends"][0]
        self.read: Any = LLTokenizer(TokenizerWrapper(self), eos_token=told["ends"])

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar leaves no choice in."""
        return list(self.read.greedy_tokenize(text))


def main() -> None:
    """Fork a process for every connection that comes, until the server has gone."""
    control = socket.socket(fileno=0)
    size = int.from_bytes(control.recv(8, socket.MSG_WAITALL), "big")
    tokens = Words(json.loads(control.recv(size, socket.MSG_WAITALL))).read
    compile_form(tokens, ("json", ""))  # what this imports, no process needs to import again
    control.sendall(READY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them
    while True:
        _, found, _, _ = socket.recv_fds(control, 1, 1)
        if not found:
            return
        if os.fork() == 0:
            control.close()
            answer(tokens, socket.socket(fileno=found[0]))
        os.close(found[0])


def answer(tokens: Any, client: socket.socket) -> None:
    """Compile the form that a client sends, tell it the grammar or what is wrong, and end the process."""
    try:
        asked = json.loads(client.makefile("rb").readline())
        Thread(target=end_with, args=(client,), daemon=True).start()
        limit(asked["seconds"], asked["memory"])
        try:
            said = {"grammar": compile_form(tokens, tuple(asked["form"]))}
        except ValueError as error:
            said = {"error": str(error)}
        except Exception as error:
            said = {} if isinstance(error, MemoryError) else {"fault": one_line(error)}
        client.sendall(json.dumps(said).encode() + b"\n")
    finally:
        os._exit(0)


def end_with(client: socket.socket) -> None:
    """End the process once its client has gone."""
    client.recv(1)
    os._exit(0)


def limit(seconds: float, memory: int) -> None:
    """End the process at its bounds: a timer of its processor, and allocations that fail."""
    if STATM.exists():  # where it does not, as on macOS, the system would not keep to a limit either
        most = int(STATM.read_text().split()[5]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an allocation that fails is told there
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
