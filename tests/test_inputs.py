"""Files that people hand in: what cannot be read in them is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import draftwise
from draftwise import UserError
from draftwise.drafters.lookup.datastore import Datastore, read_texts
from draftwise.inputs import expanded, parse_json
from draftwise.measure.trace.costs import read_costs as costs
from draftwise.measure.trace.files import read_header
from draftwise.measure.workloads import load
from draftwise.state.file import _header as merged

DEEP = "[" * 200_000


def test_json_that_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)
    assert parse_json(b'{"a": [1]}') == {"a": [1]}


def named(name: str, read: Callable[[Path], Any]) -> Any:
    return pytest.param(name, read, id=name)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        named("texts.jsonl", lambda path: list(read_texts(path))),
        named("test.jsonl", lambda path: load(f"mbpp:{path}")),
        named("own.jsonl", lambda path: load(str(path))),
        named("state.json", merged),
        named("costs.json", lambda path: costs(str(path))),
        named("trace.json", lambda path: read_header(path.parent)),
        named("header.json", lambda path: Datastore(path.parent)),
    ],
)
def test_a_file_that_is_nested_too_deeply_is_refused_in_one_line(
    tmp_path: Path, name: str, read: Callable[[Path], Any]
) -> None:
    (tmp_path / name).write_text(DEEP + "\n")
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "read"),
    [
        named("text", lambda path: list(read_texts(path))),
        named("prompt", lambda path: load(f"mbpp:{path}")),
        named("prompt", lambda path: load(str(path))),
    ],
)
def test_half_a_character_is_named_with_its_line(
    tmp_path: Path, field: str, read: Callable[[Path], Any]
) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(f'{{"{field}": "fine"}}\n{{"{field}": "half \\ud83d"}}\n')
    with pytest.raises(UserError, match=r"texts\.jsonl\D+2:? has half a character \(U\+D83D\)"):
        read(file)


def test_a_path_below_the_home_of_nobody_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="'~no-such-user/file' begins with no user"):
        expanded("~no-such-user/file")
    assert expanded("~/file") == Path.home() / "file"


def test_all_paths_are_expanded_there() -> None:
    package = Path(draftwise.__file__).parent
    others = [p for p in package.rglob("*.py") if "expanduser(" in p.read_text() and p.name != "inputs.py"]
    assert others == []
