"""How components are described, and cascades written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from draftwise import registry
from draftwise.drafters.cascade import CascadeDrafter
from draftwise.plugins import Drafter
from draftwise.policies.auto.drafts import cascades
from draftwise.registry import Entry, Option, _imported, _written, build, describe, entry
from draftwise.specs import cascade_parts, name_cascades, parse_drafter, takes_over


class Plain(Drafter):
    """Guesses."""


def test_a_class_without_an_init_of_its_own_takes_no_argument() -> None:
    assert _imported(Plain) == ("Guesses.", [], {})


@pytest.mark.parametrize("place", ["no_such_package.here:Echo", "no_such_module:Echo", "math:nothing"])
def test_a_plug_in_that_cannot_be_loaded_hides_no_other(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry.points("drafters") | {"echo": EntryPoint("echo", place, "draftwise.drafters")}
    monkeypatch.setattr(registry, "points", lambda group: known)
    found = {one.name: one.help for one in describe("drafters")}
    assert found.keys() == known.keys() and found["echo"].startswith("Cannot be loaded: ")
    assert [name for name, help in found.items() if help.startswith("Cannot")] == ["echo"]


@pytest.mark.parametrize("group", registry.GROUPS)
def test_what_the_source_says_is_what_an_import_says(group: str) -> None:
    read = {name: _written(registry.point(group, name)) for name in registry.names(group)}
    for name, found in read.items():
        if found is None:
            continue
        doc, positional, options = _imported(registry.point(group, name).load())
        assert (found[0], found[2]) == (doc, options), name
        assert found[1] == positional, name
    assert any(read.values())


PARTS = '''"""Drafters as a plug-in may have them."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal


class Shape:
    """Draws shapes.

    They are round.
    Source: Shapes and sizes (arXiv 1234.56789), section 2.
    A square is none.

    Raises:
        ValueError: there is no paper.
    """

    def __call__(self, other: str) -> None: ...

    def __init__(
        self,
        path: str,
        drafters: tuple[str, ...] = (),
        *,
        seen: object = None,
        target: object,
        name: str = "",
        deep: Annotated[bool, "below the surface"] = True,
        length: int = 5,
    ) -> None: ...


class Bare: ...


def plain(vocab_size: int, /, *, rate: Annotated[float, "of growth"] = 0.5) -> Shape:
    """Grows.

    Source: folklore, chapter 3.
    """


@cache
def wrapped(model: str) -> Shape:
    """Was changed by its decorator."""


def chosen(*, form: Annotated[Literal["a", "b"], "one of two"] = "a", other: int = 2) -> Shape:
    """Has a type that only an import understands."""
'''


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, EntryPoint]]:
    """Drafters of a plug-in, none of an installed distribution."""
    (tmp_path / "parts_of_a_plug_in.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    found = {
        name.lower(): EntryPoint(name.lower(), f"parts_of_a_plug_in:{name}", "draftwise.drafters")
        for name in ("Shape", "Bare", "plain", "wrapped", "chosen")
    }
    monkeypatch.setattr(registry, "points", lambda group: found)
    yield found
    sys.modules.pop("parts_of_a_plug_in", None)


@pytest.mark.parametrize("read", [True, False], ids=["source", "import"])
def test_a_component_is_described_by_its_docstring_and_its_arguments(
    parts: dict[str, EntryPoint], monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    if not read:
        monkeypatch.setattr(registry, "_written", lambda found: None)
    rate = {"rate": Option("float", 0.5, "of growth")}
    shape = {
        "name": Option("str", ""),
        "deep": Option("bool", True, "below the surface"),
        "length": Option("int", 5),
    }
    details, source = "They are round.\nA square is none.", "Shapes and sizes (arXiv 1234.56789), section 2"
    found = {one.name: one for one in describe("drafters")}
    assert found["shape"] == Entry("shape", "Draws shapes.", details, source, "PATH", shape)
    assert found["plain"] == Entry("plain", "Grows.", "", "folklore, chapter 3", "", rate)
    assert (found["shape"].origin, found["plain"].origin) == (
        "Shapes and sizes (arXiv 1234.56789)",
        "folklore",
    )
    assert (found["shape"].usage, found["plain"].usage) == ("shape:PATH?deep=true", "plain?rate=0.5")
    assert (found["bare"].argument, found["bare"].usage) == ("", "bare")


def test_what_the_source_does_not_tell_is_imported(parts: dict[str, EntryPoint]) -> None:
    told = {name for name, point in parts.items() if _written(point) is not None}
    assert told == {"shape", "bare", "plain"} and "parts_of_a_plug_in" not in sys.modules
    assert _written(parts["bare"]) == ("", [], {})
    assert entry("drafters", "wrapped").help == "Was changed by its decorator."
    assert entry("drafters", "wrapped").usage == "wrapped:MODEL"
    assert entry("drafters", "chosen").options == {
        "form": Option("Literal", "a", "one of two"),
        "other": Option("int", 2),
    }
    parts["compiled"] = EntryPoint("compiled", "math:sqrt", "draftwise.drafters")
    assert entry("drafters", "compiled").help == "Return the square root of x."


def test_a_component_that_names_no_source_is_of_its_distribution() -> None:
    assert entry("targets", "hf").source == f"draftwise {metadata.version('draftwise')}"
    assert entry("policies", "static").source == "Leviathan, Kalman and Matias 2023 (arXiv 2211.17192)"


# -- cascades, whatever their parts are called -----------------------------------------------------------


NAMES = ["zoo:general", "Qwen/Qwen3-0.6B", "lm:a?probe=no&vocabulary=text", "a>b", "50%", "a%3Fb", "no name"]


@pytest.mark.parametrize("lookup", ["ngram", "ngram?longest=3", "my>lookup"])
def test_every_name_can_be_part_of_a_cascade(lookup: str) -> None:
    found = name_cascades(NAMES, [lookup, "suffix"], [*NAMES, lookup, "suffix"])
    assert [cascade_parts(parse_drafter(name).path) for name in found] == [(name, lookup) for name in NAMES]
    assert cascades([*NAMES, *found]) == {len(NAMES) + i: i for i in range(len(NAMES))}
    made = build("drafters", parse_drafter(found[2]), parse_drafter(found[2]).path)
    assert isinstance(made, CascadeDrafter) and made.parts == (NAMES[2], lookup) and made.match == 1


def test_plain_names_stay_readable() -> None:
    assert name_cascades(["zoo:general"], ["ngram"], []) == ["cascade:zoo:general>ngram?match=1"]


def test_there_is_no_cascade_without_a_lookup_and_none_twice() -> None:
    assert name_cascades(["a", "b"], [], ["a", "b"]) == []
    beside = ["a", "b", "ngram", "cascade:a>suffix?match=2", "cascade:b>ngram?first=2"]
    assert name_cascades(["a", "b"], ["ngram"], beside) == ["cascade:b>ngram?match=1"]
    assert [takes_over(parse_drafter(name)) for name in beside] == [False, False, False, True, False]


def test_the_example_of_a_cascade_has_its_parts_beside_it() -> None:
    *beside, cascade = entry("drafters", "cascade").usage.split(",")
    made = build("drafters", parse_drafter(cascade), parse_drafter(cascade).path)
    assert isinstance(made, CascadeDrafter) and sorted(made.parts) == sorted(beside)
