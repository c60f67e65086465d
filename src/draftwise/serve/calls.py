"""Calls of tools in the text of an answer, found as it arrives."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from secrets import choice
from string import ascii_letters, digits
from typing import Any, Protocol

from .tools import Format

DECODER = json.JSONDecoder()
LETTERS = ascii_letters + digits
OPEN = -1  # the text ends within what is looked for


@dataclass(frozen=True, slots=True)
class Found:
    """A piece of an answer: text, reasoning, or a call with its arguments as JSON."""

    text: str = ""
    reasoning: str = ""
    name: str = ""
    arguments: str = ""
    id: str = ""


class Parser(Protocol):
    """Finds the calls of one answer."""

    def feed(self, text: str, *, last: bool) -> list[Found]:
        """What is certain after more of the answer; all of it with its `last` piece."""
        ...


def call(name: str, arguments: Any) -> Found:
    """A call with a new id of nine letters, as Mistral's templates want them."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Found(name=name, arguments=written, id="".join(choice(LETTERS) for _ in range(9)))


class Calls:
    """Finds calls of a given format.

    White space between their parts does not count. What begins like a call and is none is text.
    """

    def __init__(self, form: Format, names: Collection[str]) -> None:
        self.form, self.names = form, names
        self.held, self.begun = "", False  # text not yet given out; whether some was, or a call
        self.after = False  # a call has just ended, and what closes it may follow
        self.closed = False  # a call was the last thing: white space after it does not count

    def feed(self, text: str, *, last: bool) -> list[Found]:
        """See `Parser`."""
        self.held += text
        found: list[Found] = []
        while self.held and self._once(found, last):
            pass
        if last and self.held:
            found.append(Found(self.held))
            self.held = ""
        return found

    def _once(self, found: list[Found], last: bool) -> bool:
        """Take one part off the text held back; False if there is none, or more must come first."""
        if self.after:
            return self._end(last)
        if self.closed:
            self.held = self.held.lstrip()
            self.closed = not self.held
        at, end = self._opening(last)
        free = self.held[:at]
        if free.strip() or (free and self.begun):  # white space at the beginning belongs to what follows
            self.begun = True
            found.append(Found(free))
            self.held = self.held[at:]
            return True
        if end == OPEN or not self.held:
            return False
        return self._call(end, found, last)

    def _opening(self, last: bool) -> tuple[int, int]:
        """Where a call may begin, and where its name does; `OPEN` if that is not yet certain."""
        first = self.form.first.strip()
        if self.form.bare and self.begun:
            return len(self.held), OPEN
        at = len(self.held) - len(self.held.lstrip()) if self.form.bare else self.held.find(first[0])
        while 0 <= at < len(self.held):
            end = past(first, self.held, at)
            if end is not None and not (last and end == OPEN):
                return (0 if self.form.bare else at), end
            at = -1 if self.form.bare else self.held.find(first[0], at + 1)
        return len(self.held), OPEN

    def _call(self, begin: int, found: list[Found], last: bool) -> bool:
        """The call whose name begins at `begin`, if all of it is there."""
        made = self._read(begin)
        if made is None and not last:
            return False
        if made is None or (self.form.bare and made[0].name not in self.names):
            found.append(Found(self.held[:begin]))
            self.held, self.begun = self.held[begin:], True
            return True
        found.append(made[0])
        self.held, self.begun, self.after, self.closed = self.held[made[1] :], True, True, True
        return True

    def _read(self, begin: int) -> tuple[Found, int] | None:
        middle = self.form.middle.strip()
        at = self.held.find(middle[0], begin)
        end = past(middle, self.held, at) if at > begin else None
        if end is None or end == OPEN:
            return None
        end += len(self.held[end:]) - len(self.held[end:].lstrip())
        if "}" not in self.held[end:]:
            return None
        try:
            arguments, end = DECODER.raw_decode(self.held, end)
        except (ValueError, RecursionError):
            return None
        return call(self.held[begin:at].strip(), arguments), end

    def _end(self, last: bool) -> bool:
        """What closes a call, and what announces the next one."""
        form, end = self.form, past(self.form.closer, self.held, 0)
        if end == OPEN:
            return self._wait(last)
        at = end or 0
        next_ = None if form.again is None else past(form.again, self.held, at)
        closed = past(form.last, self.held, at) if form.last.strip() else None
        if next_ not in (None, OPEN):
            self.held, self.after, self.begun = form.first + self.held[next_:], False, False
        elif closed not in (None, OPEN):
            self.held, self.after = self.held[closed:], False
        elif OPEN in (next_, closed):
            return self._wait(last)
        else:
            self.held, self.after = self.held[at:], False
        return True

    def _wait(self, last: bool) -> bool:
        if last:  # the text ends with a part of what closes a call
            self.held = ""
        return False


def past(literal: str, text: str, at: int) -> int | None:
    """Where a literal that begins at `at` ends in a text, white space aside; `OPEN` if the text ends before,
    None if it is not there."""
    for letter in literal:
        if letter.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return OPEN
        if text[at] != letter:
            return None
        at += 1
    return at


class Shipped:
    """Finds calls as the model's own files say, with Transformers' parser."""

    def __init__(self, tokenizer: Any, template: Any, prompt: str, tools: Any) -> None:
        self.parser: Any = tokenizer.get_response_parser(template, prefix=prompt, tools=tools)
        self.raw = ""  # of a region whose value is not yet known

    def feed(self, text: str, *, last: bool) -> list[Found]:
        """See `Parser`; what cannot be parsed is text, and so is all that follows."""
        if self.parser is None:
            return [Found(text)] if text else []
        try:
            events = self.parser.feed(text)
            if last:
                events += self.parser.finalize()[1]
            return [found for event in events for found in self._found(event)]
        except (ValueError, KeyError, RuntimeError, TypeError):
            self.parser, raw = None, self.raw + text
            return [Found(raw)] if raw else []

    def _found(self, event: dict[str, Any]) -> list[Found]:
        kind, name = event["type"], event.get("field")
        if kind == "region_chunk":
            if name == "content":
                return [Found(event["text"])]
            if name in ("reasoning_content", "thinking"):
                return [Found(reasoning=event["text"])]
            self.raw += event["text"]
        if kind == "region_close" and name == "tool_calls":
            self.raw = ""
            value = event["value"]
            called = [one.get("function", one) for one in (value if isinstance(value, list) else [value])]
            return [call(str(one["name"]), one.get("arguments") or {}) for one in called]
        return []
