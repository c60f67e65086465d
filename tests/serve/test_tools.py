"""Calls of tools, by the forms in which chat templates write them."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from llguidance.hf import from_tokenizer

from draftwise.serve.bodies import Chat
from draftwise.serve.errors import APIError
from draftwise.serve.sandbox import translate_form
from draftwise.serve.tools import (
    AnswerPart,
    CallFormat,
    CallParser,
    Parser,
    ShippedParser,
    Template,
    call_form,
    offered_tools,
)

# Templates of the families' forms, as short as can be.
TOLD = "{% if tools %}{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}{% endif %}"
EACH = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}%s{% else %}{{ m.content }}{% endif %}<|e|>"
)
HEAD, END = TOLD + EACH, "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
EVERY = "{% for c in m.tool_calls %}{% set f = c.function %}"
REST = "{% if not loop.first %}, {% endif %}{{ f | tojson }}{% endfor %}]"
TEMPLATES = {
    "hermes": f"{EVERY}<tool_call>\n{{{{ f | tojson }}}}\n</tool_call>"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    "list": f"[TOOL_CALLS] [{EVERY}{REST}",
    "bare": "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    "named": f"<calls>{EVERY}<call>{{{{ f.name }}}}<sep>{{{{ '' + f.arguments }}}}</call>"
    "{% endfor %}</calls>",
}
FORMS = {
    "hermes": CallFormat(
        '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", '\n<tool_call>\n{"name": "', ""
    ),
    "list": CallFormat('[TOOL_CALLS] [{"name": "', '", "arguments": ', "}", ', {"name": "', "]"),
    "bare": CallFormat('{"name": "', '", "parameters": ', "}", None, ""),
    "named": CallFormat("<calls><call>", "<sep>", "</call>", "<call>", "</calls>", as_text=True),
}
SAID = {
    "hermes": 'Well.\n<tool_call>\n{"name":"f", "arguments": {"a": "}"}}\n</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
    "list": 'Well.\n[TOOL_CALLS][{"name": "f", "arguments": {"a": "}"}}, {"name": "g", "arguments": {}}]',
    "bare": '{"name": "f", "parameters": {"a": "}"}}',
    "named": 'Well.\n<calls><call>f<sep>{"a": "}"}</call><call>g<sep>{}</call></calls>',
}
LIKE_CALLS = [
    "a < b [1] {2}",
    "<tool_call>nothing</tool_call>",
    '{"name": "z", "parameters": {}}',
    "[TOOL",
    "<",
    "{}",
    "",
]


class Tokenizer:
    """A chat template and no tokens."""

    all_special_tokens = ("<|e|>",)
    all_special_ids = (1,)

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def apply_chat_template(self, messages: Any, tools: Any = None, **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        options.pop("tokenize")
        made: Any = render_jinja_template(
            [messages], tools=tools, chat_template=self.chat_template, **options
        )
        return str(made[0][0])


def template(name: str) -> Template:
    return Template(Tokenizer(HEAD.replace("%s", TEMPLATES[name]) + END))


def chat(**more: Any) -> Chat:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    return Chat(**{"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [tool]} | more)


def merged(found: list[AnswerPart]) -> tuple[str, list[tuple[str, Any]]]:
    calls = [(one.name, json.loads(one.arguments)) for one in found if one.name]
    return "".join(one.text for one in found), calls


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_form_is_read_off_the_template(name: str) -> None:
    found = template(name)
    assert found.format == FORMS[name] and found.takes_tools and found.takes_results
    assert found.as_text == (name == "named")


def test_what_a_template_does_not_take_is_known() -> None:
    deaf = Template(Tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert not deaf.takes_tools and deaf.takes_results and deaf.format is None
    wrong = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('') }}{% endif %}{% endfor %}"
    strict = Template(Tokenizer(wrong))
    assert not strict.takes_results
    pairs = "{% for k, v in f.arguments.items() %}<p={{ k }}>{{ v }}</p>{% endfor %}"
    other = f"{EVERY}<f={{{{ f.name }}}}>{pairs}</f>{{% endfor %}}"
    xml = Template(Tokenizer(HEAD.replace("%s", other) + END))
    assert xml.takes_tools and xml.format is None


def parsed(parser: Parser, said: str, size: int) -> list[AnswerPart]:
    """What a parser finds in a text that arrives in pieces of this size."""
    pieces = [said[i : i + size] for i in range(0, len(said), size)]
    return [part for piece in pieces for part in parser.feed(piece, last=False)] + parser.feed("", last=True)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_found_as_they_arrive(name: str, size: int) -> None:
    found = parsed(CallParser(FORMS[name], {"f", "g"}), SAID[name], size)
    text, calls = merged(found)
    assert calls == [("f", {"a": "}"}), ("g", {})][: 1 if name == "bare" else 2]
    assert text.strip() == ("" if name == "bare" else "Well.")
    assert len({one.id for one in found if one.name}) == len(calls)


@pytest.mark.parametrize("before", ["", "\n "])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stream_has_the_same_white_space(name: str, before: str) -> None:
    """What stands before a call alone, and between a call and what follows, does not count."""
    form = FORMS[name]
    said = f"{before}{form.first}f{form.middle}{{}}{form.closer}{form.last}\n\n Done.\n"
    for size in (1, 2, 5, 1000):
        assert merged(parsed(CallParser(form, {"f"}), said, size)) == ("Done.\n", [("f", {})])
    said = said.removesuffix("Done.\n")
    assert merged(CallParser(form, {"f"}).feed(said, last=True)) == ("", [("f", {})])


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_no_whole_call_stays_as_it_is(name: str) -> None:
    for said in (*LIKE_CALLS, SAID[name].split("}")[0]):
        for size in (1, 2, 1000):
            assert merged(parsed(CallParser(FORMS[name], {"f"}), said, size)) == (said, [])


def made(body: Chat, name: str, tokenizer: Any) -> Any:
    """The matcher of the grammar that the calls of a body are written by."""
    form = call_form(body, offered_tools(body), template(name))
    assert form is not None and form[0] == "tools"
    return llguidance.LLMatcher(from_tokenizer(tokenizer), translate_form(*form))


def complete(matcher: Any, tokenizer: Any, text: str) -> bool:
    """Whether a text is all that a grammar asks for."""
    matcher, ids = matcher.deep_copy(), tokenizer.encode(text, add_special_tokens=False)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["}"]}}, "required": ["a"]}


@pytest.mark.parametrize("name", TEMPLATES)
def test_strict_calls_may_follow_a_text(name: str, tokenizer: Any) -> None:
    function, form = {"name": "f", "parameters": SCHEMA, "strict": True}, FORMS[name]
    matcher = made(chat(tools=[{"type": "function", "function": function}]), name, tokenizer)
    good, bad = (f"{form.first}f{form.middle}{a}{form.closer}{form.last}" for a in ('{"a": "}"}', "{}"))
    assert complete(matcher, tokenizer, good) and not complete(matcher, tokenizer, bad)
    assert complete(matcher, tokenizer, "Well.")
    if not form.is_bare:
        assert complete(matcher, tokenizer, "Well. " + good.lstrip())
        assert not complete(matcher, tokenizer, "Well. " + bad.lstrip())


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_grammar_of_required_calls_fits_the_form(name: str, several: bool, tokenizer: Any) -> None:
    functions, form = [{"name": "f", "parameters": SCHEMA}, {"name": "g"}], FORMS[name]
    tools = [{"type": "function", "function": function} for function in functions]
    body = chat(tools=tools, tool_choice="required", parallel_tool_calls=several)
    matcher = made(body, name, tokenizer)
    one = f'{form.first}f{form.middle}{{"a": "}}"}}{form.closer}'
    two = f"{one}{form.again or ''}g{form.middle}{{}}{form.closer}"
    assert complete(matcher, tokenizer, one + form.last)
    assert complete(matcher, tokenizer, two + form.last) == (several and form.again is not None)
    assert not matcher.try_consume_tokens(tokenizer.encode("Well.", add_special_tokens=False))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "'h'"),
        ({"tool_choice": "required", "tools": []}, "no tools"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(APIError, match=said):
        offered_tools(chat(**more))


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_strict_parameters_that_no_grammar_obeys_are_refused(choice: str) -> None:
    def body(strict: bool) -> Chat:
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        function = {"name": "f", "parameters": schema, "strict": strict}
        return chat(tools=[{"type": "function", "function": function}], tool_choice=choice)

    asked, loose = body(strict=True), body(strict=False)
    strict = call_form(asked, offered_tools(asked), template("hermes"))
    assert strict is not None and "uniqueItems" in llguidance.LLMatcher.validate_grammar(
        translate_form(*strict)
    )
    form = call_form(loose, offered_tools(loose), template("hermes"))
    assert (form is None) == (choice == "auto")
    assert form is None or not llguidance.LLMatcher.validate_grammar(translate_form(*form))


def test_no_choice_needs_no_grammar() -> None:
    body = chat(tool_choice="none")
    assert offered_tools(body) == [] and call_form(chat(), offered_tools(chat()), template("hermes")) is None


def test_a_model_that_ships_its_own_parser_is_read_with_it(tokenizer: Any) -> None:
    spec = {
        "start_anchor": "<|a|>",
        "fields": {
            "content": {"close": "<|e|>"},
            "reasoning_content": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"<f=(?P<name>\w+)>",
                "close": "</f>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>(?P<value>.*?)</p>"},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        },
    }
    tools = [{"function": {"name": "f", "parameters": {"properties": {"k": {"type": "integer"}}}}}]
    parser = ShippedParser(tokenizer, spec, "<|u|>hi<|a|>", tools)
    found = parsed(parser, "<think>so</think>Well.<f=f><p=k>7</p></f>", 1)
    assert merged(found) == ("Well.", [("f", {"k": 7})])
    assert "".join(one.reasoning for one in found) == "so"
    bad = {
        "start_anchor": "<|a|>",
        "fields": {"content": {}, "tool_calls": {"open": "<c>", "close": "</c>", "content": "json"}},
    }
    parser = ShippedParser(tokenizer, bad, "<|a|>", None)
    pieces = [("a<c>no", False), ("ne</c>b", False), ("c", True)]
    found = [one for piece, last in pieces for one in parser.feed(piece, last=last)]
    assert merged(found) == ("anone</c>bc", [])
    for said in ("a<c>5</c>b", 'a<c>["f"]</c>b'):  # JSON, and no call
        assert merged(ShippedParser(tokenizer, bad, "<|a|>", None).feed(said, last=True)) == (said, [])
