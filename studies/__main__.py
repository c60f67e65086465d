"""List all studies: `python -m studies`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Study(NamedTuple):
    """A module that `python -m` runs, its first line, and the page that its figures stand in."""

    module: str
    about: str
    page: str


def studies() -> list[Study]:
    """All modules that name a page, read without importing them."""
    listed = []
    for path in sorted(HERE.rglob("*.py")):
        text = path.read_text()
        if page := re.search(r'^PAGE = "(.+)"$', text, re.MULTILINE):
            module = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
            listed.append(Study(module, text.split('"""')[1].splitlines()[0], page[1]))
    return listed


def main() -> None:
    """Print one line a study, by theme."""
    theme = ""
    for study in studies():
        if theme != (theme := ".".join(study.module.split(".")[:2])):
            print()
        print(f"python -m {study.module}  ({study.page})\n    {study.about}")


if __name__ == "__main__":
    main()
