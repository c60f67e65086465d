"""Tools: how a chat template presents them to its model, and how the model writes calls of them.

The form of calls is found by rendering: a probe of a tool, a call of it, two calls, and a result of it. What
stands around names and arguments is the form of the model's calls, whatever its family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from secrets import choice
from string import ascii_letters, digits
from typing import Any

from .bodies import Chat, Tool
from .errors import APIError
from .sandbox import LOOSE, STRICT, narrow_schema

NAME, CONTENT, ID = "draftwise_probe", "draftwise said", "a1b2c3d4e"  # some templates want ids of 9 letters
ARGUMENTS = {"draftwise_key": "draftwise_value"}
ARGUMENTS_TEXT = re.compile(r'\{\s*"draftwise_key"\s*:\s*"draftwise_value"\s*\}')
ID_FIELD = re.compile(rf',\s*"id"\s*:\s*"{ID}"')
PARTIAL_MARK = re.compile(r"<[^<>]*$")
QUESTION: dict[str, Any] = {"role": "user", "content": "draftwise asks"}
RESULT = {"role": "tool", "name": NAME, "content": CONTENT, "tool_call_id": ID}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "draftwise",
        "parameters": {"type": "object", "properties": {"draftwise_key": {"type": "string"}}},
    },
}
DECODER = json.JSONDecoder()
OPEN = -1  # the text ends within what is looked for


@dataclass(frozen=True)
class CallFormat:
    """Calls are written as `first` NAME `middle` ARGUMENTS `closer`, further ones after `again`, then `last`.

    The arguments are JSON. Without `again` there is one call at most.
    """

    first: str
    middle: str
    closer: str
    again: str | None
    last: str
    as_text: bool = False  # in messages the arguments are given as text

    @property
    def is_bare(self) -> bool:
        """True if nothing but JSON separates a call from a text: it is one only at the beginning."""
        return self.first.lstrip().startswith("{")


class Template:
    """The effect of tools on the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # The template of answers in the model's own files; None if they have none.
        self.shipped = getattr(tokenizer, "response_template", None)
        names, ids = (getattr(tokenizer, f"all_special_{key}", ()) for key in ("tokens", "ids"))
        # The special tokens by their texts, which a text is usually given without.
        self.special_ids = {str(name): int(token) for name, token in zip(names, ids, strict=False)}

    def render(self, *messages: dict[str, Any], ask: bool = False) -> str:
        """Return the text of messages with the probe of a tool; empty if the template does not take them."""
        options = {"tokenize": False, "add_generation_prompt": ask, "tools": [TOOL]}
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), **options))
        except Exception:  # whatever a template raises: it does not take them
            return ""

    @cached_property
    def takes_tools(self) -> bool:
        """True if the model is told of tools."""
        return NAME in self.render(QUESTION, ask=True)

    @cached_property
    def takes_results(self) -> bool:
        """True if the model is told the results of tools."""
        return CONTENT in self.render(QUESTION, _calls(1, self.as_text), RESULT, ask=True)

    @cached_property
    def format(self) -> CallFormat | None:
        """The form of calls; None if their arguments are no JSON."""
        return self._find_format(as_text=False) or self._find_format(as_text=True)

    @property
    def as_text(self) -> bool:
        """True if the template wants arguments as text; most want them as objects."""
        return self.format is not None and self.format.as_text

    def _find_format(self, *, as_text: bool) -> CallFormat | None:
        plain = self.render(QUESTION, {"role": "assistant", "content": CONTENT})
        before, _, after = plain.partition(CONTENT)
        texts = [self.render(QUESTION, _calls(n, as_text)) for n in (1, 2)]
        one, two = (self._cut(text, before, after) for text in texts)
        split = _split(one)
        if split is None or not split[0].strip():
            return None
        first, middle, rest = split
        head = first + NAME + middle
        match = ARGUMENTS_TEXT.match(two, len(head)) if two.startswith(head) else None
        between, name, second = two[match.end() :].partition(NAME) if match else ("", "", "")
        match = ARGUMENTS_TEXT.search(second)
        if not name or match is None or ID_FIELD.sub("", second[match.end() :]) != rest:
            return CallFormat(first, middle, rest, None, "", as_text)
        between = ID_FIELD.sub("", between)
        closer = PARTIAL_MARK.sub("", _common_start(rest, between))
        return CallFormat(first, middle, closer, between[len(closer) :], rest[len(closer) :], as_text)

    def _cut(self, text: str, before: str, after: str) -> str:
        """Return what the model itself wrote, without the marks of its message."""
        prompt = self.render(QUESTION, ask=True)
        at = len(_common_start(text, before))
        text = text[max(at, len(prompt) if prompt and text.startswith(prompt) else 0) :]
        if after and text.endswith(after):
            return text[: -len(after)]
        # The special tokens that end messages.
        marks = [t for t in self.special_ids if t and "call" not in t.lower() and "tool" not in t.lower()]
        while mark := next((mark for mark in marks if text.rstrip().endswith(mark)), ""):
            text = text.rstrip()[: -len(mark)]
        return text

    @cached_property
    def marks(self) -> set[str]:
        """The special tokens that belong to the form of calls, which a text must show."""
        form = self.format
        shown = json.dumps(self.shipped, ensure_ascii=False) if self.shipped is not None else ""
        if form is not None:
            shown += "".join([form.first, form.middle, form.closer, form.again or "", form.last])
        return {token for token in self.special_ids if token in shown}

    def call_parser(self, prompt: Sequence[int], tools: Sequence[Any]) -> Callable[[], Parser]:
        """Return a function that makes the parser of an answer to a prompt with these tools."""
        if self.shipped is not None:
            text = self.tokenizer.decode(prompt)
            return partial(ShippedParser, self.tokenizer, self.shipped, text, tools)
        assert self.format is not None
        return partial(CallParser, self.format, {tool["function"]["name"] for tool in tools})


class ToolTokenizer:
    """A tokenizer whose text has all special tokens, and none of those `hidden`, special or not."""

    def __init__(self, tokenizer: Any, hidden: Collection[int]) -> None:
        self.tokenizer, self.hidden = tokenizer, frozenset(hidden)
        self.convert_ids_to_tokens = getattr(tokenizer, "convert_ids_to_tokens", str)

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        options["skip_special_tokens"] = False
        return str(self.tokenizer.decode([t for t in tokens if t not in self.hidden], **options))


def _calls(n: int, as_text: bool) -> dict[str, Any]:
    arguments = json.dumps(ARGUMENTS) if as_text else ARGUMENTS
    call = {"id": ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call] * n}


def _common_start(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))]


def _split(text: str) -> tuple[str, str, str] | None:
    """Return what stands before the name of a call, between it and its arguments, and after them."""
    first, _, rest = text.partition(NAME)
    match = ARGUMENTS_TEXT.search(rest)
    if match is None:
        return None
    middle, last = rest[: match.start()], ID_FIELD.sub("", rest[match.end() :])
    repeats = NAME in middle + last or ID in first + middle + last
    return None if repeats or not middle.strip() else (first, middle, last)


# -- the grammar of calls -----------------------------------------------------------------------------


def offered_tools(body: Chat) -> list[Tool]:
    """Return the tools that the model is told of; a choice must fit them."""
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise APIError("tool_choice: there are no tools to choose from", param="tool_choice")
        return []
    if choice is not None and not isinstance(choice, str):
        name = choice.function.name
        if name not in [tool.function.name for tool in tools]:
            raise APIError(f"tool_choice names {name[:80]!r}: give one of the tools", param="tool_choice")
    return [] if choice == "none" else list(tools)


def call_form(body: Chat, tools: Sequence[Tool], template: Template) -> tuple[str, str] | None:
    """Return the form that calls must have: where a call is required, and where the schemas are strict.

    An `APIError` says that the form is not known.
    """
    choice = body.tool_choice or "auto"
    strict = any(tool.function.strict for tool in tools)
    if not tools or (choice == "auto" and not strict):
        return None
    form = template.format
    if form is None:
        kind = "strict tools" if choice == "auto" else "a required call"
        remedy = "set tool_choice to auto, without strict"
        message = f"{kind}: the form of this model's calls is not known; {remedy}"
        raise APIError(message, param="tool_choice")
    name = None if isinstance(choice, str) else choice.function.name
    chosen = [tool for tool in tools if name in (None, tool.function.name)]
    several = name is None and body.parallel_tool_calls is not False and form.again is not None
    after_text, ids = choice == "auto", template.special_ids
    try:
        return "tools", write_grammar(form, chosen, ids, several=several, after_text=after_text)
    except ValueError as error:
        raise APIError(f"tools: {error}; leave it out, or set strict to false", param="tools") from None


def write_grammar(
    form: CallFormat, tools: Sequence[Tool], ids: Mapping[str, int], *, several: bool, after_text: bool
) -> str:
    """Return the form of calls in Lark's notation, perhaps after a text in which none begins."""
    first = _literal(form.first, ids)
    rules = [f"calls: {first} rest"]
    further = f" ({_literal(form.again or '', ids)} call)*" if several else ""
    rules.append(f"rest: call{further} {_literal(form.last, ids)}")
    rules.append("call: " + " | ".join(f"call{k}" for k in range(len(tools))))
    for k, tool in enumerate(tools):
        schema = tool.function.parameters or {"type": "object", "properties": {}}
        strict = tool.function.strict
        schema = (narrow_schema(schema) if strict else schema) | {"x-guidance": STRICT if strict else LOOSE}
        name = _literal(tool.function.name + form.middle, ids)
        rules.append(f"call{k}: {name} %json {json.dumps(schema)} {_literal(form.closer, ids)}")
    if not after_text:
        return "\n".join(["start: calls", *rules])
    if form.is_bare:
        return "\n".join(["start: calls | TEXT", r"TEXT: /[^{\s](.|\n)*/", *rules])
    mark, rest = _split_mark(form.first, ids)
    text = r"TEXT: /(.|\n)*/"
    if mark in ids:
        return "\n".join(["start: TEXT calls?", text, *rules])
    rule = f"begun[lazy]: TEXT {json.dumps(mark)}"
    return "\n".join(["start: begun " + f"{_literal(rest, ids)} rest | TEXT", rule, text, *rules])


def _split_mark(first: str, ids: Mapping[str, int]) -> tuple[str, str]:
    """Return the mark that separates a call from a text, and what else stands before the name."""
    first = first.lstrip()
    special = next((token for token in ids if token and first.startswith(token)), None)
    mark = special or re.split(r"\s*\[?\s*\{", first)[0].strip()
    return mark, first[len(mark) :]


def _literal(text: str, ids: Mapping[str, int]) -> str:
    """Return a fixed text in Lark's notation, with its special tokens as tokens."""
    marks = "|".join(re.escape(token) for token in sorted(ids, key=len, reverse=True) if token)
    parts = re.split(f"({marks})", text) if marks else [text]
    return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts if part)


# -- the calls in an answer ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of an answer: text, reasoning, or a call with its arguments as JSON."""

    text: str = ""
    reasoning: str = ""
    name: str = ""
    arguments: str = ""
    id: str = ""


class Parser:
    """Finds the calls of one answer, as it arrives; this one finds none."""

    def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
        """Return what is certain after more of the answer; all of it with its `last` piece."""
        return [AnswerPart(text)] if text else []


def new_call(name: str, arguments: Any) -> AnswerPart:
    """Return a call with a new id of nine letters, as Mistral's templates want them."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return AnswerPart(name=name, arguments=text, id="".join(choice(ascii_letters + digits) for _ in range(9)))


class CallParser(Parser):
    """Finds calls of a given format.

    White space between their parts does not count. What begins like a call and is none is text.
    """

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self.form, self.names = form, names
        self.waiting, self.has_begun = "", False  # text not yet given out; some was, or a call
        self.is_after_call = False  # what closes a call that has just ended may follow
        self.strips_space = False  # a call was the last thing: white space after it does not count

    def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
        self.waiting += text
        parts: list[AnswerPart] = []
        while self.waiting and self._take(parts, last):
            pass
        if last and self.waiting:
            parts.append(AnswerPart(self.waiting))
            self.waiting = ""
        return parts

    def _take(self, parts: list[AnswerPart], last: bool) -> bool:
        """Take one part off the text held back; False if there is none, or more must come first."""
        if self.is_after_call:
            return self._close(last)
        if self.strips_space:
            self.waiting = self.waiting.lstrip()
            self.strips_space = not self.waiting
        at, end = self._find_opening(last)
        free = self.waiting[:at]
        if free.strip() or (free and self.has_begun):  # white space at the beginning belongs to what follows
            self.has_begun = True
            parts.append(AnswerPart(free))
            self.waiting = self.waiting[at:]
            return True
        if end == OPEN or not self.waiting:
            return False
        return self._take_call(end, parts, last)

    def _find_opening(self, last: bool) -> tuple[int, int]:
        """Return where a call may begin, and where its name does; `OPEN` if that is not yet certain."""
        first, text, is_bare = self.form.first.strip(), self.waiting, self.form.is_bare
        if is_bare and self.has_begun:
            return len(text), OPEN
        at = len(text) - len(text.lstrip()) if is_bare else text.find(first[0])
        while 0 <= at < len(text):
            end = skip_literal(first, text, at)
            if end is not None and not (last and end == OPEN):
                return (0 if is_bare else at), end
            at = -1 if is_bare else text.find(first[0], at + 1)
        return len(text), OPEN

    def _take_call(self, begin: int, parts: list[AnswerPart], last: bool) -> bool:
        """Take the call whose name begins at `begin`, if all of it is there."""
        call, end = self._read_call(begin)
        if call is None and not last:
            return False
        if call is None or (self.form.is_bare and call.name not in self.names):
            parts.append(AnswerPart(self.waiting[:begin]))
            self.waiting, self.has_begun = self.waiting[begin:], True
            return True
        parts.append(call)
        self.waiting = self.waiting[end:]
        self.has_begun = self.is_after_call = self.strips_space = True
        return True

    def _read_call(self, begin: int) -> tuple[AnswerPart | None, int]:
        middle, text = self.form.middle.strip(), self.waiting
        at = text.find(middle[0], begin)
        end = skip_literal(middle, text, at) if at > begin else None
        if end is None or end == OPEN or "}" not in text[end:]:
            return None, OPEN
        end += len(text[end:]) - len(text[end:].lstrip())
        try:
            arguments, end = DECODER.raw_decode(text, end)
        except (ValueError, RecursionError):
            return None, OPEN
        return new_call(text[begin:at].strip(), arguments), end

    def _close(self, last: bool) -> bool:
        """Take what closes a call, and what announces the next one."""
        form, text = self.form, self.waiting
        end = skip_literal(form.closer, text, 0)
        at = end or 0
        again = None if form.again is None else skip_literal(form.again, text, at)
        closed = skip_literal(form.last, text, at) if form.last.strip() else None
        is_open = end == OPEN or (OPEN in (again, closed) and {again, closed} <= {None, OPEN})
        if is_open:
            self.waiting = "" if last else text  # the text ends with a part of what closes a call
            return False
        if again not in (None, OPEN):
            self.waiting, self.is_after_call, self.has_begun = form.first + text[again:], False, False
        else:
            self.waiting, self.is_after_call = text[at if closed is None else closed :], False
        return True


def skip_literal(literal: str, text: str, at: int) -> int | None:
    """Return where a literal that begins at `at` ends in a text, white space aside; `OPEN` if the text ends
    before, None if it is not there."""
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


class ShippedParser(Parser):
    """Finds calls as the model's own files say, with Transformers' parser."""

    def __init__(self, tokenizer: Any, template: Any, prompt: str, tools: Any) -> None:
        self.parser: Any = tokenizer.get_response_parser(template, prefix=prompt, tools=tools)
        self.raw = ""  # of a region whose value is not yet known

    def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
        """See `Parser`; what cannot be parsed is text, and so is all that follows."""
        if self.parser is None:
            return super().feed(text, last=last)
        raw = self.raw + text
        try:
            events = self.parser.feed(text)
            if last:
                events += self.parser.finalize()[1]
            return [part for event in events for part in self._read(event)]
        except (ValueError, KeyError, RuntimeError, TypeError, AttributeError):
            self.parser = None
            return super().feed(raw, last=last)

    def _read(self, event: dict[str, Any]) -> list[AnswerPart]:
        kind, name = event["type"], event.get("field")
        if kind == "region_chunk":
            if name == "content":
                return [AnswerPart(event["text"])]
            if name in ("reasoning_content", "thinking"):
                return [AnswerPart(reasoning=event["text"])]
            self.raw += event["text"]
        if kind == "region_close" and name == "tool_calls":
            self.raw = ""
            value = event["value"]
            calls = [one.get("function", one) for one in (value if isinstance(value, list) else [value])]
            return [new_call(str(one["name"]), one.get("arguments") or {}) for one in calls]
        return []
