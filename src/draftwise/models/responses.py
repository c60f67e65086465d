"""Transformers' own parser of what a model answers."""

from __future__ import annotations

from typing import Any


def response_parser(template: Any, prompt: str, tools: Any) -> Any:
    """A parser, fed as the text grows, by the response template of a model's files."""
    from transformers.utils.chat_parsing import ResponseParser

    return ResponseParser(template, prefix=prompt, tools=tools)
