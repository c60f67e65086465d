"""List all studies: `python -m studies`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Study:
    """A module that `python -m` runs, its first line, and the page that its figures stand in."""

    module: str
    about: str
    page: str


def studies() -> list[Study]:
    """All modules that name a page, read without importing them."""
    listed = []
    for path in sorted(HERE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        pages = [
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and [ast.unparse(target) for target in node.targets] == ["PAGE"]
        ]
        if pages:
            module = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
            about = (ast.get_docstring(tree) or "").splitlines()[0]
            listed.append(Study(module, about, str(pages[0])))
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
