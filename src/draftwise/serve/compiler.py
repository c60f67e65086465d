"""Compiles grammars in a process of its own, bounded in time and memory: a client can send one that takes
minutes or gigabytes.

`python -m draftwise.serve.compiler` is that process. It reads lines of JSON from its standard input: first
the vocabulary, then a grammar each; it answers each with a line.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from tempfile import TemporaryFile
from threading import Lock, Timer
from time import thread_time
from typing import IO, Any

from .refusal import Refusal

LARGEST = 32 << 20  # characters of a compiled grammar
MEBIBYTE = 1 << 20
TRIALS, TRIED = 4, 48  # texts that are written by a grammar to try it, and their tokens
SLOW = 0.25  # seconds that a grammar may take for a token
LOOSE, TIGHT = r"[^\"\\\r\n]", r"[^\0-\x1f\"\\\r\n]"  # a character of a string, in XGrammar's EBNF
PLACE = re.compile(r"^\[[\d:]+\] \S+: ")  # the time and the line of code before XGrammar's errors


class Compiler:
    """The process that compiles, started when it is first needed, and again after it had to be killed.

    `vocabulary` is XGrammar's `TokenizerInfo` as JSON. A grammar may take `seconds` and `memory` bytes; the
    latter holds where the system tells how much a process has (Linux).
    """

    def __init__(self, vocabulary: str, *, seconds: float, memory: int) -> None:
        self.vocabulary, self.seconds, self.memory = vocabulary, seconds, memory
        self.process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def compile(self, kind: str, source: str) -> str:
        """A compiled grammar as XGrammar's JSON.

        Raises:
            Refusal: it cannot be compiled, or not within the bounds.
        """
        with self._lock:
            late: list[bool] = []
            answer = self._ask({"kind": kind, "source": source, "seconds": self.seconds}, late)
        if answer is None:
            bounds = f"{self.seconds:g} seconds and {self.memory / MEBIBYTE:g} MiB"
            over = f"{self.seconds:g} seconds" if late else bounds
            raise Refusal(
                f"the {kind} takes more than {over} to compile and try: make it simpler", param=kind
            )
        if "error" in answer:
            raise Refusal(f"the {kind} cannot be compiled: {answer['error']}", param=kind)
        return str(answer["compiled"])

    def close(self) -> None:
        """End the process, even one that is at work; any thread may call."""
        if (process := self.process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, asked: dict[str, Any], late: list[bool]) -> dict[str, Any] | None:
        """The answer of the process; None if it died, or was killed because it was `late`."""
        process = self._running()

        def kill() -> None:
            late.append(True)
            process.kill()

        timer = Timer(self.seconds, kill)
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line.endswith("\n"):
            self._end()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        """The process, once it has read the vocabulary.

        Raises:
            Refusal: it does not start.
        """
        if self.process is None or self.process.poll() is not None:
            self._end()
            pipe: Any = subprocess.PIPE
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self.memory)],
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the server
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            try:
                self.process.stdin.write(json.dumps(self.vocabulary) + "\n")
                self.process.stdin.flush()
                ready = self.process.stdout.readline()
            except BrokenPipeError:
                ready = ""
            if not ready:
                self._end()
                raise Refusal("the process that compiles grammars does not start", 500)
        return self.process


def main(memory: int) -> None:
    """Compile what comes until there is no more."""
    import xgrammar

    answers = os.fdopen(os.dup(1), "w")
    said = TemporaryFile()  # noqa: SIM115  # until this process ends
    for printed in (1, 2):  # what libraries print is no answer
        os.dup2(said.fileno(), printed)
    os.nice(5)  # steps of texts come first
    info = xgrammar.TokenizerInfo.deserialize_json(json.loads(sys.stdin.readline()))
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bound_memory(memory)
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        bound_time(asked["seconds"])
        try:
            said.seek(0)
            said.truncate()
            grammar = compiled(compiler, asked["kind"], asked["source"])
            if asked["kind"] == "schema":
                obeyed(said)
            tried(grammar, info.vocab_size)
            made = grammar.serialize_json()
            answer = {"compiled": made} if len(made) <= LARGEST else {"error": "it becomes too large"}
        except Exception as error:
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            if isinstance(error, MemoryError) or "bad_alloc" in told:
                sys.exit(1)  # the next one begins with all the memory it may have
            answer = {"error": PLACE.sub("", told)[:200]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compiled(compiler: Any, kind: str, source: str) -> Any:
    """A grammar as XGrammar compiles it; with free spaces a model may write them without end."""
    from xgrammar import Grammar

    if kind == "json":
        return compiler.compile_json_schema('{"type": "object"}', any_whitespace=False, strict_mode=False)
    if kind in ("schema", "loose schema"):
        made = Grammar.from_json_schema(source, any_whitespace=False)
        return compiler.compile_grammar(without_controls(made))
    if kind == "tools":
        made = compiler.compile_structural_tag(source)
        right = without_controls(made.grammar)
        return compiler.compile_grammar(right) if isinstance(right, str) else made
    return compiler.compile_regex(source) if kind == "regex" else compiler.compile_grammar(source)


def without_controls(grammar: Any) -> Any:
    """The same grammar, in whose strings of bounded length XGrammar allows characters that JSON does not."""
    written = str(grammar)
    right = written.replace(LOOSE, TIGHT)
    return grammar if right == written else right


def obeyed(said: IO[bytes]) -> None:
    """See that XGrammar has not told of something that it reads over.

    Raises:
        ValueError: it has.
    """
    said.seek(0)
    _, warned, rest = said.read().decode(errors="replace").partition("Warning: ")
    if warned:
        raise ValueError(f"{rest.splitlines()[0][:120]}; leave it out, or set strict to false")


def tried(grammar: Any, vocab_size: int) -> None:
    """Write some texts by a grammar: one that is ambiguous enough takes for ever, which must happen here.

    Raises:
        ValueError: a token takes too long.
    """
    import numpy as np
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    for seed in range(TRIALS):
        matcher, draw = xgrammar.GrammarMatcher(grammar), np.random.default_rng(seed)
        for _ in range(TRIED):
            began = thread_time()
            matcher.fill_next_token_bitmask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little"))
            if thread_time() - began > SLOW:
                raise ValueError(f"a token takes more than {SLOW:g} seconds: make it less ambiguous")
            if not len(allowed) or not matcher.accept_token(int(draw.choice(allowed))):
                break
            if matcher.is_terminated():
                break


def bound_memory(memory: int) -> None:
    """Let this process have so many bytes more than now."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    except (ImportError, OSError, ValueError):
        pass  # a system without such bounds: the time bounds the memory too


def bound_time(seconds: float) -> None:
    """End this process after so many seconds of work, if the server is not there to kill it."""
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
