"""The functions that three values pass through: a prompt, an outcome, an option.

    python -m studies.walk [--root CHECKOUT] [--value prompt] [--json]

The bundled models decode a small text, and every call of a function of the package is inspected. A function
is listed if it receives or returns the value, at its first such call; constructors included.

prompt    from the command line to the tokens of the answer: the text, and its token ids
outcome   from the loop to a learner and into the state file: outcomes, their rewards, the learned numbers
option    from the command line to a drafter: the number in `suffix?history=98765`

Values are followed by identity, or by content if the content is unique (the text, the ids, 98765).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import tomllib

from studies.common.command import command, start

PAGE = "CONTRIBUTING.md"
PROMPT = "Zanzibar quickstep: name three rivers of marmalade"
HISTORY = 98765
VALUES = ("prompt", "outcome", "option")
HERE = Path(__file__).parents[1]
Carries = Callable[[Any], bool]


def inside(value: Any, found: Carries, depth: int) -> bool:
    """Return whether a value is the wanted one, or has it as an item or an attribute."""
    if found(value):
        return True
    if depth == 0 or isinstance(value, str | bytes | int | float):
        return False
    if isinstance(value, dict):
        return any(inside(one, found, depth - 1) for one in [*value, *value.values()])
    if isinstance(value, list | tuple | set | frozenset):
        return any(inside(one, found, depth - 1) for one in list(value)[:64])
    return False


class Walk:
    """Records the functions of the package that a value passes, in the order of their first call."""

    def __init__(self, package: Path, carries: Carries, follow: Callable[[FrameType, Any], None]) -> None:
        self.package, self.carries, self.follow = f"{package}{os.sep}", carries, follow
        self.passed: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """The callback of `sys.setprofile`."""
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(self.package):
            return
        if frame.f_code.co_name.startswith("<"):
            return
        sys.setprofile(None)  # looking may call functions of the package
        try:
            received = any(inside(one, self.carries, 3) for one in given(frame))
            if received or (event == "return" and inside(value, self.carries, 3)):
                self.passed.setdefault(place(frame, self.package))
                self.follow(frame, value if event == "return" else None)
        finally:
            sys.setprofile(self)


def given(frame: FrameType) -> list[Any]:
    """The arguments of a call without `self`."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    own = {name: frame.f_locals.get(name) for name in code.co_varnames[:count]}
    return [value for name, value in own.items() if name not in ("self", "cls")]


def place(frame: FrameType, package: str) -> str:
    """Module and name of a function."""
    module = frame.f_code.co_filename.removeprefix(package).removesuffix(".py").removesuffix("/__init__")
    return f"{module.replace(os.sep, '.')}.{frame.f_code.co_qualname}"


def nothing(frame: FrameType, value: Any) -> None:
    """Follow no further value."""


def prompt(package: Path, folder: Path) -> list[str]:
    """The walk of a prompt: its text, then its ids, in any container."""
    from draftwise import Decoder
    from draftwise.cli.app import app

    tokenizer = Decoder.from_pretrained("zoo:target", drafters=["ngram"]).tokenizer
    ids: list[int] = list(tokenizer(PROMPT)["input_ids"])[-6:]

    def carries(value: Any) -> bool:
        if isinstance(value, str):
            return PROMPT in value
        if hasattr(value, "tolist") and getattr(value, "ndim", 9) <= 2:
            value = value.tolist()
            value = value[0] if value and isinstance(value[0], list) else value
        elif hasattr(value, "tokens") and not callable(value.tokens):
            value = value.tokens
        return isinstance(value, list | tuple) and holds(value, ids)

    return walked(package, carries, nothing, lambda: app(GENERATE, standalone_mode=False))


def holds(value: Sequence[Any], ids: Sequence[int]) -> bool:
    """Return whether a row of token ids has these one after the other."""
    if not all(isinstance(x, int) for x in value[:4]):
        return False
    return any(list(value[k : k + len(ids)]) == ids for k in range(len(value) - len(ids) + 1))


def outcome(package: Path, folder: Path) -> list[str]:
    """The walk of an outcome: the object, its reward, the numbers of the learner that it updated."""
    from draftwise.cli.app import app

    kept: dict[int, Any] = {}  # held, so that no identity is given twice

    def known(value: Any) -> bool:
        return id(value) in kept and not isinstance(value, str | int | bool | type(None))

    def carries(value: Any) -> bool:
        kind = type(value)
        own = kind.__module__.startswith("draftwise") and kind.__name__ in ("Outcome", "Feedback")
        return own or known(value)

    def keep(value: Any) -> None:
        if value not in (0.0, 1.0):  # constants are shared objects
            kept[id(value)] = value

    def follow(frame: FrameType, value: Any) -> None:
        heard = given(frame)
        for one in [*heard, value]:
            if type(one).__name__ == "Outcome":
                keep(one.reward)
        learner = frame.f_locals.get("self")
        if ".learners." in type(learner).__module__ and any(map(known, heard)):
            keep(learner)
        if isinstance(value, dict | list) and any(inside(one, known, 3) for one in heard):
            keep(value)

    asked = [*GENERATE, "--policy", "ucb1", "--state", str(folder / "state.json")]
    return walked(package, carries, follow, lambda: app(asked, standalone_mode=False))


def option(package: Path, folder: Path) -> list[str]:
    """The walk of an option of a drafter: its text, then its number."""
    from draftwise.cli.app import app

    def carries(value: Any) -> bool:
        if isinstance(value, str):
            return str(HISTORY) in value
        return isinstance(value, int) and value == HISTORY

    asked = [*GENERATE, "--drafters", f"suffix?history={HISTORY}"]
    found = walked(package, carries, nothing, lambda: app(asked, standalone_mode=False))
    last = max(k for k, name in enumerate(found) if ".suffix." in name and "__init__" in name)
    return found[: last + 1]  # from there on the text is only the drafter's name


GENERATE = ["generate", PROMPT, "--raw", "--max-new-tokens", "24"]
WALKS = {"prompt": prompt, "outcome": outcome, "option": option}


def walked(package: Path, carries: Carries, follow: Callable[[FrameType, Any], None], what: Any) -> list[str]:
    """Run something and return the functions that the value passed."""
    walk = Walk(package, carries, follow)
    sys.setprofile(walk)
    try:
        what()
    finally:
        sys.setprofile(None)
    return list(walk.passed)


def child(root: Path, value: str) -> list[str]:
    """The walk in a process that imports the package of another checkout, with its own entry points."""
    meta = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": meta["scripts"], **meta["entry-points"]}
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "draftwise-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: draftwise\nVersion: 0\n")
        points = [f"[{group}]\n" + lines(named) for group, named in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(points))
        sources = [str(root.resolve() / part) for part in ("src", "zoo/src")]
        path = os.pathsep.join([folder, *sources, str(HERE)])
        out = Path(folder) / "walk.json"
        asked = [sys.executable, "-m", "studies.walk", "--value", value, "--out", str(out)]
        own = os.environ | {"PYTHONPATH": path}
        ran = subprocess.run(asked, env=own, capture_output=True, text=True, check=False, cwd=folder)
        if ran.returncode:
            raise SystemExit(f"{root}: the walk of {value} failed: {ran.stderr.strip().splitlines()[-1]}")
        found: list[str] = json.loads(out.read_text())
        return found


def lines(named: dict[str, str]) -> str:
    """A group of entry points as its file has them."""
    return "".join(f"{name} = {value}\n" for name, value in named.items())


def summary(functions: Sequence[str]) -> str:
    """Functions, modules and rooms that a value passes, and how often it moves from one room to another."""
    rooms = [name.split(".")[0] for name in functions]
    modules = {name.rsplit(".", 1)[0] for name in functions}
    crossings = sum(a != b for a, b in pairwise(rooms))
    counts = f"{len(functions)} functions, {len(modules)} modules, {len(set(rooms))} rooms"
    return f"{counts}, {crossings} crossings"


def main() -> None:
    """Print the walks of each checkout."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--root", action="append", type=Path, help="a checkout; may be repeated")
    parser.add_argument("--value", choices=VALUES, action="append", help="default: all three")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="run here and write the functions to this file")
    asked = parser.parse_args()
    if asked.out:
        import draftwise

        with tempfile.TemporaryDirectory() as folder:
            found = WALKS[asked.value[0]](Path(draftwise.__file__).parent, Path(folder))
        asked.out.write_text(json.dumps(found))
        return
    walks = {str(r): {v: child(r, v) for v in asked.value or VALUES} for r in asked.root or [HERE]}
    if asked.json:
        print(json.dumps(walks, indent=1))
        return
    for root, by_value in walks.items():
        for value, functions in by_value.items():
            print(f"\n{root}, {value}: {summary(functions)}\n")
            print("\n".join(f"  {name}" for name in functions))


if __name__ == "__main__":
    start(main)
