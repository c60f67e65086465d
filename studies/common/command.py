"""The command line of a study: one parser, one way to start, comma-separated lists, other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from draftwise.errors import UserError


def command(about: str | None, page: str) -> ArgumentParser:
    """The parser of a study: its docstring is the help text, and `page` has its figures."""
    spec = sys.modules["__main__"].__spec__
    return ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=about,
        epilog=f"Figures: {page}",
        formatter_class=RawDescriptionHelpFormatter,
    )


def start(main: Callable[[], int | None]) -> NoReturn:
    """Start a study; an error that the user can fix is printed as one line.

    What earlier runs have taught on this machine is not used.
    """
    os.environ.setdefault("DRAFTWISE_STATE", "off")
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")


def add_pictures(parser: ArgumentParser) -> None:
    """The option for the folder of pictures."""
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"), help="folder for pictures")


def listed(text: str) -> list[str]:
    """Comma-separated names."""
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[int]:
    """Comma-separated whole numbers."""
    return [int(number) for number in listed(text)]


def progress(every: int) -> Callable[[str, int, int], None]:
    """A line on standard error after every so many steps, and after the last."""

    def said(what: str, done: int, total: int) -> None:
        if done % every == 0 or done == total:
            print(f"  {what} {done}/{total}", file=sys.stderr, flush=True)

    return said


def again(*more: str) -> list[str]:
    """The command that runs this study once more, with further options."""
    spec = sys.modules["__main__"].__spec__
    first = ["-m", spec.name] if spec else [sys.argv[0]]
    return [sys.executable, *first, *sys.argv[1:], *more]


def in_tree(tree: Path, study: str, options: Mapping[str, Any]) -> Any:
    """What `child(options)` of a study prints in another checkout, by that one's own library and studies."""
    tree = tree.resolve()
    code = f"import runpy; runpy.run_path({str(tree / study)!r})['child']({dict(options)!r})"
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code]
    ran = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(ran.stdout.splitlines()[-1])
