"""The same request in other words: what a user would have typed instead. Standard library only.

`rewordings.json` is a table of rules, tried in order. `from` is a form with fields in braces, `to` are forms
with the same fields. The table is ours.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("rewordings.json")


def reword(prompt: str) -> list[str]:
    """The prompt in other words, by the first rule that it fits; nothing where none does."""
    for form, others in _rules():
        if match := form.fullmatch(prompt.strip()):
            fields = {name: text.strip() for name, text in match.groupdict().items()}
            return [_filled(other, fields) for other in others]
    return []


@cache
def _rules() -> list[tuple[re.Pattern[str], list[str]]]:
    table: list[Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return [(_form(rule["from"]), rule["to"]) for rule in table]


def _form(text: str) -> re.Pattern[str]:
    """A pattern with one group a field: the last takes what it can, the others as little as they can."""
    parts = re.split(r"\{(\w+)\}", text)
    fields = parts[1::2]
    pattern = re.escape(parts[0])
    for name, after in zip(fields, parts[2::2], strict=True):
        pattern += f"(?P<{name}>.+{'' if name == fields[-1] else '?'})" + re.escape(after)
    return re.compile(pattern, re.DOTALL)


def _filled(form: str, fields: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: fields[match[1]], form)
