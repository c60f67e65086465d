"""Shows the doctests of docstrings as code in the API pages; a bare `>>>` is a quotation in Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)", flags=re.M)


class Doctests(Extension):
    """Fences every doctest, up to its next empty line."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
