"""A conversation continues from what was written only where the template says just that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from draftwise import Decoder
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.generation.prompts import render_messages
from draftwise.generation.text import decode
from draftwise.policies.catalogue import method
from draftwise.testing.distributions import Vector
from draftwise.testing.target import SimTarget
from tests.tiny_tokenizers import MAKERS

# As Qwen3 has it: what an answer says before </think> is not said again in later turns.
FORGETS = """{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- else %}
{%- set content = message.content %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
REPEATS = FORGETS.replace("'</think>' in content", "false")
TRIMS = REPEATS.replace("message.content %}\n{%- if", "message.content | trim %}\n{%- if")
THINKS = FORGETS.replace(
    "{{- '<|im_start|>assistant\n' }}{%- endif %}",
    "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{%- endif %}",
)


class World:
    """A tokenizer with a template, and a target that says `first` and then whatever its history makes it."""

    def __init__(self, template: str, first: Sequence[str], *, end: bool = True) -> None:
        self.tokenizer = MAKERS["byte-level"]()
        self.tokenizer.chat_template = template
        self.start, self.end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        # One letter a token: the same text has another tokenization too.
        said = [t for c in first for t in self.tokenizer(c, add_special_tokens=False)["input_ids"]]
        self.first = [*said, *([self.end] if end else [])]
        self.target = SimTarget(self.distribution, len(self.tokenizer))
        self.decoder = Decoder(
            self.target,
            {"ngram": NgramDrafter()},
            method("static-3", ["ngram"]),
            self.tokenizer,
            eos=[self.end],
        )
        self.chat = self.decoder.chat()
        self.limit_steps()

    def distribution(self, history: Sequence[int]) -> Vector:
        logits = np.random.default_rng(abs(hash(tuple(history)))).normal(size=len(self.tokenizer))
        begin = len(self.prompt([{"role": "user", "content": "Hello"}]))
        written = len(history) - begin
        if list(history).count(self.start) == 2 and written < len(self.first):
            logits[self.first[written]] += 100.0
        return logits

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        encoded: Any = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def alone(self, ids: list[int], n: int) -> list[int]:
        """What the target writes after these tokens, by itself."""
        text = list(ids)
        while len(text) < len(ids) + n and (len(text) == len(ids) or text[-1] != self.end):
            text.append(int(self.distribution(text).argmax()))
        return text[len(ids) :]

    def limit_steps(self, most: int = 99) -> None:
        """More steps than this are an endless loop."""
        loop: Any = self.decoder.loop
        step, calls = loop.step, list[Any]()

        def counted(*given: Any) -> Any:
            calls.append(given)
            assert len(calls) <= most, "the answer does not end"
            return step(*given)

        loop.step = counted

    def turn(self, text: str, n: int) -> bool:
        """One more turn, whose prompt must read as the template says; whether it continued from the last."""
        chat = self.chat
        before = chat._request
        list(chat.send(text, max_new_tokens=n))
        request = chat._request
        assert request is not None
        prompt = request.tokens[: request.prompt_length]
        assert decode(self.tokenizer, prompt, special=True) == render_messages(
            self.tokenizer, chat.messages[:-1]
        )
        assert chat.last.token_ids == self.alone(prompt, n)
        if request is not before:
            assert prompt == self.prompt(chat.messages[:-1])
        return request is before


def test_reasoning_that_the_template_drops_is_not_gone_on_from() -> None:
    world = World(FORGETS, "<think>a b</think>\n\ncd")
    went_on = [world.turn(text, 40) for text in ("Hello", "And then?", "So?")]
    assert world.chat.messages[1]["content"] == "<think>a b</think>\n\ncd"
    assert went_on == [False, False, True]
    world.chat.close()
    assert not world.decoder.loop.parked


def test_an_answer_without_reasoning_is_gone_on_from() -> None:
    world = World(FORGETS, "abcd")
    assert [world.turn(text, 9) for text in ("Hello", "And then?", "So?")] == [False, True, True]


@pytest.mark.parametrize(
    ("template", "first", "end"),
    [
        (TRIMS, " ab ", True),  # spaces that the template takes away
        (THINKS, "abcd", True),  # what the answer began with is not said again
        (REPEATS, ["a", "</s>", "b"], True),  # a special token within, which the text does not have
    ],
)
def test_what_the_template_writes_otherwise_is_read_anew(
    template: str, first: Sequence[str], end: bool
) -> None:
    world = World(template, first, end=end)
    assert [world.turn(text, 9) for text in ("Hello", "And then?")] == [False, False]


def test_a_stop_string_that_was_cut_off_is_not_in_the_next_prompt() -> None:
    world = World(REPEATS, "ab.cd")
    list(world.chat.send("Hello", stop=".", max_new_tokens=9))
    assert world.chat.messages[-1]["content"] == "ab"
    assert not world.turn("And then?", 6)


def test_a_chat_that_is_closed_ends_the_answer_that_is_being_read() -> None:
    world = World(REPEATS, "abcdefgh")
    answer = world.chat.send("Hello", max_new_tokens=30)
    assert next(answer).text == "a"
    world.chat.close()
    assert "".join(piece.text for piece in answer) in "bcdefgh"
    assert not world.chat.messages and not world.decoder.loop.open and not world.decoder.loop.parked
    assert not world.turn("Hello", 4)


def test_a_message_ends_the_answer_that_is_being_read() -> None:
    world = World(REPEATS, "abcdefgh")
    answer = world.chat.send("Hello", max_new_tokens=30)
    assert next(answer).text == "a"
    assert not world.turn("And then?", 6)
    list(answer)
    said = [m["content"] for m in world.chat.messages]
    assert said == ["Hello", "a", "And then?", world.chat.last.text]
    assert world.turn("So?", 6)


@pytest.mark.parametrize("stop", [(), "c"])
def test_an_answer_that_has_ended_and_was_not_read_to_its_end_is_in_the_history(stop: Any) -> None:
    world = World(REPEATS, "abcd")
    loop: Any = world.decoder.loop
    loop.step = whole(loop.step)
    answer = world.chat.send("Hello", max_new_tokens=30, stop=stop)
    assert next(answer).text == "a" and world.chat.messages[1:] == []
    assert not world.turn("And then?", 6)
    del answer
    assert [m["content"] for m in world.chat.messages] == [
        "Hello",
        "ab" if stop else "abcd",
        "And then?",
        world.chat.last.text,
    ]
    assert world.turn("So?", 6)


def whole(step: Any) -> Any:
    """A step that takes its requests to their ends at once."""

    def all_of_it(requests: list[Any]) -> list[Any]:
        rounds = []
        while not all(request.done for request in requests):
            rounds += step(requests)
        return rounds

    return all_of_it


@pytest.mark.parametrize("after", [0, 1])
def test_a_turn_that_failed_is_read_anew(after: int) -> None:
    """A failed request cannot be extended."""

    def fails(tokens: Sequence[int], start: int) -> int:
        raise RuntimeError("this criterion fails")

    world = World(REPEATS, "abcd")
    for text in ("Hello", "And then?")[:after]:
        world.turn(text, 6)
    with pytest.raises(RuntimeError, match="this criterion fails"):
        list(world.chat.send("So?", max_new_tokens=6, ends=fails))
    assert world.chat.messages[-1] == {"role": "assistant", "content": ""}
    assert not world.turn("Why?", 6)
    assert world.turn("Is it?", 6)


def test_a_text_that_is_written_meanwhile_is_no_answer() -> None:
    """What is held back of an answer is read when its text has ended, and others may be written by then."""
    world = World(REPEATS, "abcd")
    said = ""
    for piece in world.chat.send("Hello", max_new_tokens=4, stop="de"):
        said += piece.text
        world.decoder.generate("Why?", max_new_tokens=2)
    assert said == world.chat.messages[-1]["content"] == world.chat.last.text == "abcd"


def test_a_conversation_that_is_closed_elsewhere_is_read_anew() -> None:
    world = World(REPEATS, "abcd")
    world.turn("Hello", 6)
    for request in list(world.decoder.loop.parked.values()):
        world.decoder.loop.close(request)
    assert not world.turn("And then?", 6) and world.turn("So?", 6)
