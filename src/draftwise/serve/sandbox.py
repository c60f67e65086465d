"""Compiles the grammars that clients send, in processes of their own, bounded in seconds and in memory.

`python -m draftwise.serve.sandbox` knows the vocabulary, imports no torch and forks a process for each
grammar. A process ends at its bounds, or with its connection.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from time import thread_time
from typing import Any
from weakref import finalize

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from ..errors import one_line

MAX_SECONDS = 1.5  # of a processor
MAX_MEMORY = 256 << 20  # bytes besides the vocabulary
MAX_STATES = 10_000  # of a grammar's lexer, each of 1 to 2 kB
MAX_SYMBOLS = 20_000  # of its rules
SPARE_SECONDS, SECONDS_PER_TOKEN = 0.25, 0.02  # that a grammar may take, and how many more with each token
# For llguidance's NoExtension and NoExtensionBias.
NO_EXTENSION = "nothing may follow, and no text is whole: a rule has no end, or its parts exclude each other"
TRIALS, TRIAL_TOKENS = 2, 24  # texts that are written by a grammar to try it
READY = b"+"
STATM = Path("/proc/self/statm")  # sizes of this process in pages; the sixth is that of its data
NICENESS = 5  # the texts that are written come first
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A name that is written in codes would go around the schema of that name.
STRICT = SPACED | {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": 'bfnrt\\"'}
LOOSE = SPACED | {"lenient": True}
Form = tuple[str, str]  # a kind of grammar, and its source


# -- compiling: in any process ------------------------------------------------------------------------


def error_of(matcher: Any) -> str:
    """Return what is wrong with a matcher in words for people; empty if nothing is."""
    message = str(matcher.get_error()) if matcher.is_error() else ""
    if message.startswith("NoExtension"):
        return NO_EXTENSION
    return " ".join(message.split()).removesuffix(" <non-verbose/>")


def compile_form(tokens: Any, form: Form) -> str:
    """Return the grammar of a form in llguidance's own notation; a ValueError says what trying it found."""
    try:
        grammar = translate_form(*form)
        error = try_grammar(compile_grammar(tokens, grammar))
    except RecursionError:
        error = "it is nested too deeply"
    if error:
        raise ValueError(error)
    return grammar


def translate_form(kind: str, source: str) -> str:
    """Return a form in llguidance's own notation; a ValueError has what no grammar obeys."""
    if kind in ("json", "schema", "loose schema"):
        schema = json.loads(source) if source else {"type": "object"}
        loose = kind == "loose schema"
        options: Any = LOOSE if loose else STRICT
        schema = schema if loose else narrow_schema(schema)
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(source))
    if kind == "grammar":
        try:
            source = any_to_lark(source)
        except Exception as error:  # it has no kind of its own for most of what is wrong with a grammar
            raise ValueError(str(error) or type(error).__name__) from None
    return str(LLMatcher.grammar_from_lark(source))


def compile_grammar(tokens: Any, grammar: str) -> Any:
    """Return a matcher of a grammar in llguidance's own notation; a ValueError says why there is none."""
    limits = LLParserLimits(max_lexer_states=MAX_STATES, max_grammar_size=MAX_SYMBOLS, verbose_errors=False)
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if error := error_of(matcher):
        raise ValueError(error)
    return matcher


def try_grammar(matcher: Any) -> str:
    """Write some texts by a grammar; return an error if it is too expensive from the beginning."""
    left = SPARE_SECONDS + thread_time()
    for seed in range(TRIALS):
        copy, rng = matcher.deep_copy(), np.random.default_rng(seed)
        for _ in range(TRIAL_TOKENS):
            bits = np.unpackbits(np.frombuffer(copy.compute_bitmask(), np.uint8), bitorder="little")
            allowed, left = np.flatnonzero(bits), left + SECONDS_PER_TOKEN
            if thread_time() > left:
                return f"it takes more than {SECONDS_PER_TOKEN:g} seconds a token"
            if not len(allowed) or copy.is_stopped():
                break
            if not copy.try_consume_tokens([int(rng.choice(allowed))]):
                break
        if error := error_of(copy):
            return error
    return ""


# -- schemas, as llguidance is to read them ----------------------------------------------------------------


# Keywords of schemas by names of their own, and of values.
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
VALUES = {"enum", "const", "default", "examples", "example"}
OLD = ("extends", "disallow", "divisibleBy", "$recursiveRef")  # of early drafts, which it reads over
# Formats of JSON Schema's own, all of strings; others, such as `int32`, do not bind a value.
_FORMATS = (
    "date-time date time duration email hostname ipv4 ipv6 uri uri-reference uri-template uuid json-pointer "
    "relative-json-pointer regex idn-email idn-hostname iri iri-reference"
)
FORMATS = frozenset(_FORMATS.split())
LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][48]|[13579][26]|[2468]0)00)"  # years but 0
DAY = f"^([0-9]{{4}}-(0[13-9]|1[0-2])|[0-9]{{4}}-02-([01]|2[0-8])|{LEAP}-02-29)"
YEAR = "^([1-9]|0[1-9]|00[1-9]|000[1-9])"
NO_LEAP_SECOND = "[0-9]{2}:[0-9]{2}:[0-5]"
# What else texts of a format must have: llguidance knows the form of a date and not the calendar, allows the
# second 60 at any time, and reads no coded names of hosts.
PATTERNS = {
    "date": (DAY, YEAR),
    "date-time": (DAY, YEAR, f"[Tt]{NO_LEAP_SECOND}"),
    "time": (f"^{NO_LEAP_SECOND}",),
    "hostname": (r"^[^.]{1,63}(\.[^.]{1,63})*$", "^([^-]|-[^-])*$", "^.{0,253}$"),
}
FINEST = 1024  # of the fractions that are binary numbers, such as 0.5
# Characters that it would have to write as a code, and leaves out of a fixed text instead.
CODED = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xuU]\{?([0-9a-fA-F]+)\}?|.)", re.DOTALL)


def narrow_schema(schema: Any, *, inner: bool = False) -> Any:
    """Return a copy with formats narrowed to what they bind; a ValueError names what no grammar obeys."""
    if isinstance(schema, list):
        return [narrow_schema(one, inner=True) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if problem := _find_unobeyed(schema, inner):
        raise ValueError(problem)
    narrowed: dict[str, Any] = {}
    for word, value in schema.items():
        if word in NAMED and isinstance(value, dict):
            narrowed[word] = {name: narrow_schema(one, inner=True) for name, one in value.items()}
        elif word != "format":
            narrowed[word] = value if word in VALUES else narrow_schema(value, inner=True)
    form, kinds = str(schema.get("format")), schema.get("type", "string")
    if form in FORMATS and "string" in (kinds if isinstance(kinds, list) else [kinds]):
        narrowed["format"] = form
        if form in PATTERNS and isinstance(both := narrowed.get("allOf", []), list):
            narrowed["allOf"] = [*both, *({"pattern": pattern} for pattern in PATTERNS[form])]
    return narrowed


def _find_unobeyed(schema: dict[str, Any], inner: bool) -> str:
    """Return what the grammar of one place of a schema would read over; empty if there is nothing."""
    if word := next((word for word in OLD if word in schema), ""):
        return f"the keyword {word!r}"
    if "$id" in schema and "$ref" in schema and (inner or not str(schema["$ref"]).startswith("#")):
        return "$id beside $ref, which drafts of JSON Schema read differently"
    if re.search("draft-0[1-3]", str(schema.get("$schema"))):
        return f"$schema {schema['$schema'][:60]!r}, which is older than draft 4"
    multiple = schema.get("multipleOf", 1)
    if isinstance(multiple, float) and not (multiple * FINEST).is_integer():
        return f"multipleOf {multiple:g}, of which few binary numbers are multiples"
    if _may_repeat(schema):
        return "minProperties, which one name written twice would meet"
    fixed = [word for word in ("const", "enum") if any(map(CODED.search, _strings(schema.get(word))))]
    named = schema.get("patternProperties")
    patterns = [*_strings(schema.get("pattern")), *(named if isinstance(named, dict) else ())]
    if fixed or any(map(_has_code, map(str, patterns))):
        return f"{fixed[0] if fixed else 'pattern'} with a control character"
    return ""


def _strings(value: Any) -> Iterator[str]:
    """The strings in a value, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value if isinstance(value, list) else [*value, *value.values()]:
            yield from _strings(inner)


def _has_code(pattern: str) -> bool:
    """Return whether a regex names a character that would have to be written as a code."""
    for escape in ESCAPE.finditer(pattern):
        number = next((digits for digits in escape.groups() if digits), "")
        if escape[0] in (r"\a", r"\v") or (number and CODED.match(chr(min(int(number, 16), 0x80)))):
            return True
    return CODED.search(pattern) is not None


def _may_repeat(schema: dict[str, Any]) -> bool:
    """Return whether an object may have too few properties: no grammar sees that a free name comes twice."""
    least, required = schema.get("minProperties", 0), schema.get("required")
    certain = len(set(map(str, required))) if isinstance(required, list) else 0
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return isinstance(least, int) and least > max(1, certain) and not closed


# -- in the server ------------------------------------------------------------------------------------


class Connection:
    """A connection to a process that compiles one grammar; closing it ends the process."""

    def __init__(self) -> None:
        self.local, self.remote = socket.socketpair()

    def close(self) -> None:
        """End the process, in whatever state it is."""
        with suppress(OSError):  # it is closed already
            self.local.shutdown(socket.SHUT_RDWR)
        self.local.close()
        self.remote.close()

    def ask(self, question: dict[str, Any]) -> dict[str, str]:
        """Send a question and return the answer; empty if the process ended without one."""
        self.remote.close()  # the process has its own copy: when it ends, so does the answer
        with suppress(OSError, ValueError):
            self.local.sendall(json.dumps(question).encode() + b"\n")
            with self.local.makefile("rb") as answers:
                answer: dict[str, str] = json.loads(answers.readline())
                return answer
        return {}


class Sandbox:
    """Starts the processes that compile, for one vocabulary: an `LLTokenizer`.

    Each has so many `seconds` of a processor, and bytes of `memory` besides the vocabulary.
    """

    def __init__(self, tokens: Any, *, seconds: float = MAX_SECONDS, memory: int = MAX_MEMORY) -> None:
        self.tokens, self.seconds, self.memory, self._lock = tokens, seconds, memory, Lock()
        self.special = [i for i in range(tokens.vocab_size) if tokens.is_special_token(i)]
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._end: Callable[[], Any] | None = None

    def compile(self, form: Form, connection: Connection) -> str:
        """Return a form's grammar in llguidance's notation; a ValueError says why there is none."""
        with self._lock:
            socket.send_fds(self._start(), [READY], [connection.remote.fileno()])
        answer = connection.ask({"form": form, "seconds": self.seconds, "memory": self.memory})
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        if "grammar" not in answer:
            bounds = f"{self.memory >> 20} MiB or {self.seconds:g} seconds"
            message = f"it grows beyond {bounds} while it is compiled: make it smaller"
            raise ValueError(answer.get("error", message))
        return answer["grammar"]

    def close(self) -> None:
        with self._lock:
            if self._end is not None:
                self._end()

    def _start(self) -> socket.socket:
        """Start the process that forks unless it runs; return the connection to it."""
        if self._control is None or self._process is None or self._process.poll() is not None:
            if self._end is not None:
                self._end()
            self._control, remote = socket.socketpair()
            path = os.pathsep.join(filter(None, sys.path))
            with remote:  # in a session of its own: the keyboard's Ctrl-C is not for it
                self._process = subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.sandbox"],
                    stdin=remote.fileno(),
                    stdout=subprocess.DEVNULL,
                    # The modules of this process, and from Python 3.11 on none of the folder that it is in.
                    env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
                    start_new_session=True,
                )
            self._end = finalize(self, end_process, self._control, self._process)
            texts = [self.tokens.decode_bytes([i]).hex() for i in range(self.tokens.vocab_size)]
            vocabulary = {"tokens": texts, "special": self.special, "ends": self.tokens.eos_tokens}
            message = json.dumps(vocabulary).encode()
            self._control.sendall(len(message).to_bytes(8, "big") + message)
            if self._control.recv(1) != READY:
                self._end()
                raise RuntimeError("the process that compiles grammars did not start: its error is above")
        return self._control


def end_process(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the process that forks, which ends with its connection."""
    control.close()
    process.wait()


# -- in processes of their own ------------------------------------------------------------------------


class Vocabulary:
    """A vocabulary without its tokenizer, as llguidance reads it: of a text it takes the longest tokens."""

    bos_token_id = None

    def __init__(self, message: dict[str, Any]) -> None:
        self.tokens = [bytes.fromhex(token) for token in message["tokens"]]
        self.special_token_ids, self.eos_token_id = message["special"], message["ends"][0]
        self.tokenizer: Any = LLTokenizer(TokenizerWrapper(self), eos_token=message["ends"])

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar leaves no choice in."""
        return list(self.tokenizer.greedy_tokenize(text))


def main() -> None:
    """Fork a process for every connection that comes, until the server has gone."""
    control = socket.socket(fileno=0)
    size = int.from_bytes(control.recv(8, socket.MSG_WAITALL), "big")
    tokens = Vocabulary(json.loads(control.recv(size, socket.MSG_WAITALL))).tokenizer
    compile_form(tokens, ("json", ""))  # what this imports, no process needs to import again
    control.sendall(READY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            answer(tokens, socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def answer(tokens: Any, client: socket.socket) -> None:
    """Compile the form that a client sends, answer with the grammar or an error, and end the process."""
    try:
        question = json.loads(client.makefile("rb").readline())
        Thread(target=end_with, args=(client,), daemon=True).start()
        limit_process(question["seconds"], question["memory"])
        try:
            reply = {"grammar": compile_form(tokens, tuple(question["form"]))}
        except ValueError as error:
            reply = {"error": str(error)}
        except Exception as error:
            reply = {} if isinstance(error, MemoryError) else {"fault": one_line(error)}
        client.sendall(json.dumps(reply).encode() + b"\n")
    finally:
        os._exit(0)


def end_with(client: socket.socket) -> None:
    """End the process once its client has gone."""
    client.recv(1)
    os._exit(0)


def limit_process(seconds: float, memory: int) -> None:
    """End the process at its bounds: a timer of its processor, and allocations that fail."""
    if STATM.exists():  # where it does not, as on macOS, the system would not keep to a limit either
        size = int(STATM.read_text().split()[5]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an allocation that fails is reported there
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
