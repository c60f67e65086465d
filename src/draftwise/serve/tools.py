"""How a chat template tells its model of tools, and how the model writes calls of them.

Both are found out by rendering: a probe of a tool, a call of it, two calls, and an answer of it. What stands
around names and arguments is the form of the model's calls, whatever its family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .costs import dear
from .fields import Chat, Tool
from .forms import LOOSE, STRICT, affordable
from .refusal import Refusal
from .schemas import read

NAME, SAID, NUMBER = "draftwise_probe", "draftwise said", "a1b2c3d4e"  # some templates want ids of 9 letters
ARGUMENTS = {"draftwise_key": "draftwise_value"}
WRITTEN = re.compile(r'\{\s*"draftwise_key"\s*:\s*"draftwise_value"\s*\}')
WITH_ID = re.compile(rf',\s*"id"\s*:\s*"{NUMBER}"')
HALF = re.compile(r"<[^<>]*$")  # the beginning of a mark
ASKS: dict[str, Any] = {"role": "user", "content": "draftwise asks"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "draftwise",
        "parameters": {"type": "object", "properties": {"draftwise_key": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Format:
    """Calls are written as `first` NAME `middle` ARGUMENTS `closer`, further ones after `again`, then `last`.

    The arguments are JSON. Without `again` there is one call at most.
    """

    first: str
    middle: str
    closer: str
    again: str | None
    last: str

    @property
    def bare(self) -> bool:
        """Whether nothing but JSON tells a call from a text: it is one only at the beginning."""
        return self.first.lstrip().startswith("{")


class Template:
    """What the chat template of a tokenizer makes of tools."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def rendered(self, *messages: dict[str, Any], tools: Any = None, ask: bool = False) -> str:
        """The text of messages; empty if the template does not take them."""
        try:
            more = {} if tools is None else {"tools": tools}
            said = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=ask, **more
            )
            return str(said)
        except Exception:  # whatever a template raises: it does not take them
            return ""

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the model is told of tools."""
        return NAME in self.rendered(ASKS, tools=[TOOL], ask=True)

    @cached_property
    def takes_answers(self) -> bool:
        """Whether the model is told what a tool answered."""
        return SAID in self.rendered(ASKS, _calls(1, self.as_text), _answer(), tools=[TOOL], ask=True)

    @cached_property
    def shipped(self) -> Any:
        """How the model's own files say that its answers are parsed; None if they do not."""
        return getattr(self.tokenizer, "response_template", None)

    @cached_property
    def format(self) -> Format | None:
        """The form of calls; None if their arguments are no JSON."""
        return self._formats[self.as_text]

    @cached_property
    def as_text(self) -> bool:
        """Whether the template wants arguments as text; most want them as objects."""
        return self._formats[False] is None and self._formats[True] is not None

    @cached_property
    def _formats(self) -> dict[bool, Format | None]:
        return {as_text: self._format(as_text) for as_text in (False, True)}

    def _format(self, as_text: bool) -> Format | None:
        plain = self.rendered(ASKS, {"role": "assistant", "content": SAID}, tools=[TOOL])
        before, _, after = plain.partition(SAID)
        talks = [self.rendered(ASKS, _calls(n, as_text), tools=[TOOL]) for n in (1, 2)]
        one, two = (self._cut(talk, before, after) for talk in talks)
        split = _split(one)
        if split is None or not split[0].strip():
            return None
        first, middle, rest = split
        head = first + NAME + middle
        found = WRITTEN.match(two, len(head)) if two.startswith(head) else None
        between, name, further = two[found.end() :].partition(NAME) if found else ("", "", "")
        ended = WRITTEN.search(further)
        if not name or ended is None or WITH_ID.sub("", further[ended.end() :]) != rest:
            return Format(first, middle, rest, None, "")
        between = WITH_ID.sub("", between)
        closer = HALF.sub("", _shared(rest, between))
        return Format(first, middle, closer, between[len(closer) :], rest[len(closer) :])

    def _cut(self, text: str, before: str, after: str) -> str:
        """What the model itself wrote, without the marks of its message."""
        asked = self.rendered(ASKS, tools=[TOOL], ask=True)
        at = len(_shared(text, before))
        text = text[max(at, len(asked) if asked and text.startswith(asked) else 0) :]
        if after and text.endswith(after):
            return text[: -len(after)]
        ends = [mark for mark in self._marks() if mark]
        while cut := next((mark for mark in ends if text.rstrip().endswith(mark)), ""):
            text = text.rstrip()[: -len(cut)]
        return text

    def _marks(self) -> list[str]:
        """The special tokens that end messages."""
        return [str(t) for t in self.specials if "call" not in t.lower() and "tool" not in t.lower()]

    @cached_property
    def specials(self) -> list[str]:
        """The texts of special tokens, which a text is usually given without."""
        return [str(token) for token in getattr(self.tokenizer, "all_special_tokens", ())]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The special tokens by their texts."""
        ids = getattr(self.tokenizer, "all_special_ids", ())
        return {text: int(number) for text, number in zip(self.specials, ids, strict=False)}

    @cached_property
    def marks(self) -> set[str]:
        """The special tokens that belong to the form of calls, which a text must show."""
        form = self.format
        shown = json.dumps(self.shipped, ensure_ascii=False) if self.shipped is not None else ""
        if form is not None:
            shown += "".join([form.first, form.middle, form.closer, form.again or "", form.last])
        return {token for token in self.specials if token in shown}


class Spoken:
    """A tokenizer whose text has all special tokens, and none of those `dropped`, special or not."""

    def __init__(self, tokenizer: Any, dropped: Collection[int]) -> None:
        self.tokenizer, self.dropped = tokenizer, frozenset(dropped)
        self.convert_ids_to_tokens = getattr(tokenizer, "convert_ids_to_tokens", str)

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        """The text of some tokens."""
        options["skip_special_tokens"] = False
        return str(self.tokenizer.decode([t for t in tokens if t not in self.dropped], **options))


def _calls(n: int, as_text: bool = False) -> dict[str, Any]:
    arguments = json.dumps(ARGUMENTS) if as_text else ARGUMENTS
    call = {"id": NUMBER, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call] * n}


def _answer() -> dict[str, Any]:
    return {"role": "tool", "name": NAME, "content": SAID, "tool_call_id": NUMBER}


def _shared(one: str, other: str) -> str:
    """What two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    return one[:at]


def _split(text: str) -> tuple[str, str, str] | None:
    """What stands before the name of a call, between it and its arguments, and after them."""
    first, _, rest = text.partition(NAME)
    found = WRITTEN.search(rest)
    if found is None:
        return None
    middle, last = rest[: found.start()], WITH_ID.sub("", rest[found.end() :])
    known = NAME in middle + last or NUMBER in first + middle + last
    return None if known or not middle.strip() else (first, middle, last)


def offered(body: Chat) -> list[Tool]:
    """The tools that the model is told of.

    Raises:
        Refusal: a choice that does not fit them.
    """
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise Refusal("tool_choice: there are no tools to choose from", param="tool_choice")
        return []
    if choice is not None and not isinstance(choice, str):
        name = choice.function.name
        if name not in [tool.function.name for tool in tools]:
            raise Refusal(f"tool_choice names {name[:80]!r}: give one of the tools", param="tool_choice")
    return [] if choice == "none" else list(tools)


def grammar(body: Chat, tools: Sequence[Tool], template: Template) -> tuple[str, str] | None:
    """The form that calls must have: where a call is required, and where the schemas are strict.

    Raises:
        Refusal: the form is not known.
    """
    choice = body.tool_choice or "auto"
    strict = any(tool.function.strict for tool in tools)
    if not tools or (choice == "auto" and not strict):
        return None
    form = template.format
    if form is None:
        asked = "strict tools" if choice == "auto" else "a required call"
        said = (
            f"{asked}: the form of this model's calls is not known; set tool_choice to auto, without strict"
        )
        raise Refusal(said, param="tool_choice")
    named = None if isinstance(choice, str) else choice.function.name
    chosen = [tool for tool in tools if named in (None, tool.function.name)]
    several = named is None and body.parallel_tool_calls is not False and form.again is not None
    try:
        return "tools", _written(form, chosen, template.numbers, several=several, after_text=choice == "auto")
    except ValueError as error:
        raise Refusal(f"tools: {error}; leave it out, or set strict to false", param="tools") from None


def _written(
    form: Format, tools: Sequence[Tool], numbers: Mapping[str, int], *, several: bool, after_text: bool
) -> str:
    """The form of calls in Lark's notation, perhaps after a text in which none begins."""
    affordable(dear(*(tool.function.parameters for tool in tools)))
    first = _literal(form.first, numbers)
    rules = [f"calls: {first} rest"]
    further = f" ({_literal(form.again or '', numbers)} call)*" if several else ""
    rules.append(f"rest: call{further} {_literal(form.last, numbers)}")
    rules.append("call: " + " | ".join(f"call{k}" for k in range(len(tools))))
    for k, tool in enumerate(tools):
        schema = tool.function.parameters or {"type": "object", "properties": {}}
        read_as, options = (read(schema), STRICT) if tool.function.strict else (schema, LOOSE)
        read_as = read_as | {"x-guidance": options}
        name = _literal(tool.function.name + form.middle, numbers)
        rules.append(f"call{k}: {name} %json {json.dumps(read_as)} {_literal(form.closer, numbers)}")
    if not after_text:
        return "\n".join(["start: calls", *rules])
    if form.bare:
        return "\n".join(["start: calls | TEXT", r"TEXT: /[^{\s](.|\n)*/", *rules])
    mark, kept = _begins(form.first, numbers)
    text = r"TEXT: /(.|\n)*/"
    if mark in numbers:
        return "\n".join(["start: TEXT calls?", text, *rules])
    begun = f"begun[lazy]: TEXT {json.dumps(mark)}"
    return "\n".join(["start: begun " + f"{_literal(kept, numbers)} rest | TEXT", begun, text, *rules])


def _begins(first: str, numbers: Mapping[str, int]) -> tuple[str, str]:
    """The mark that tells a call from a text, and what else stands before the name."""
    lead = first.lstrip()
    special = next((token for token in numbers if token and lead.startswith(token)), None)
    mark = special or re.split(r"\s*\[?\s*\{", lead)[0].strip()
    return mark, lead[len(mark) :]


def _literal(text: str, numbers: Mapping[str, int]) -> str:
    """A fixed text in Lark's notation, with its special tokens as tokens."""
    marks = "|".join(re.escape(token) for token in sorted(numbers, key=len, reverse=True) if token)
    parts = re.split(f"({marks})", text) if marks else [text]
    return " ".join(f"<[{numbers[part]}]>" if part in numbers else json.dumps(part) for part in parts if part)
