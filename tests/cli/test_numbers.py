"""Every numeric option of every verb, as the command line itself lists them: what is no such number is
refused in one line, and no number ends in a traceback."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import typer

from draftwise import data
from draftwise.cli.app import app
from draftwise.measure.bench.ours import Models as BenchModels
from tests.effort import some
from tests.measure.bench.conftest import sim_models

from .conftest import Models, Result

NEVER = ["nan", "inf", "-inf", "x", "", "1,,2"]  # numbers of nothing
HUGE = [str(10**30), "1e300"]
SIGNED = {"--seed", "--presence-penalty", "--frequency-penalty"}  # where a number below zero means something
NUMBERS = re.compile(r"[\d.]+(,[\d.]+)*")


class Numeric(NamedTuple):
    """An option that takes a number, or several in a text."""

    verb: tuple[str, ...]
    option: str
    kind: type

    def __str__(self) -> str:
        return " ".join((*self.verb, self.option))


def commands(group: typer.Typer, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for one in group.registered_commands:
        assert one.callback is not None
        yield (*before, one.name or one.callback.__name__), one.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None and inner.name is not None
        yield from commands(inner.typer_instance, (inner.name,))


def numeric() -> Iterator[Numeric]:
    for verb, callback in commands(app):
        hints = get_type_hints(callback, include_extras=True)
        for name, parameter in signature(callback).parameters.items():
            if get_origin(hints[name]) is not Annotated:
                continue
            kind, info = get_args(hints[name])[:2]
            if get_origin(kind) in (Union, UnionType):
                (kind,) = [part for part in get_args(kind) if part is not type(None)]
            in_text = isinstance(parameter.default, str) and NUMBERS.fullmatch(parameter.default)
            if kind in (int, float) or in_text:
                named = [given for given in info.param_decls or () if given.startswith("--")]
                yield Numeric(verb, named[0] if named else f"--{name.replace('_', '-')}", kind)


ALL = list(numeric())


def test_the_table_has_them_all() -> None:
    """As many as there are, some of each verb that has any."""
    assert len(ALL) > 90 and len({str(one) for one in ALL}) == len(ALL)
    assert {"simulate --costs", "bench --batch", "generate --samples", "train eagle --rate"} <= set(
        map(str, ALL)
    )


@pytest.fixture
def world(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Small models for every verb, and the arguments that it cannot do without."""
    models.max_length = 60
    questions = [data.Prompt(i, "qa", ("abc def",)) for i in range(2)]
    monkeypatch.setattr(data, "spec_bench", lambda: questions)
    monkeypatch.setattr(BenchModels, "load", lambda target, drafters, **rest: sim_models(list(drafters)))
    monkeypatch.setattr("draftwise.measure.report.write_report", lambda out, **_: None)
    for verb in ("drafter", "eagle", "medusa", "classifier", "router"):
        monkeypatch.setattr(f"draftwise.train.{verb}.train", lambda run, out, tell: {"after": {}})
    monkeypatch.setattr("draftwise.serve.run.serve", lambda decoder, name, **named: None)
    rows = [{"question_id": i, "category": "qa", "turns": ["abc def"]} for i in range(2)]
    workload = tmp_path / "prompts.jsonl"
    workload.write_text("".join(json.dumps(row) + "\n" for row in rows))
    some = ["--workload", str(workload), "--max-new-tokens", "8", "--out", str(tmp_path / "out")]
    return {
        "demo": ["--prompts", "1", "--max-new-tokens", "8"],
        "generate": ["abc", "--max-new-tokens", "8"],
        "chat": ["--max-new-tokens", "8"],
        "bench": [*some, "--policies", "none", "--drafters", "good"],
        "tune": [*some, "--policy", "static", "--grid", "length=1", "--drafters", "good"],
        "trace": [*some, "--length", "2"],
        "replay": [str(tmp_path / "trace"), "--policies", "static-2", "--out", str(tmp_path / "out")],
        "simulate": ["--tokens", "20", "--seeds", "1", "--policies", "ucb1"],
        "serve": ["--target", "zoo:target"],
        "train": ["--data", "x.jsonl", "--out", str(tmp_path / "out"), "--target", "zoo:target"],
    }


@pytest.fixture
def typed(
    world: dict[str, list[str]], run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Numeric, str], Result]:
    """A verb run with its option at this value."""

    def typed(one: Numeric, value: str) -> Result:
        if one.verb[0] == "replay" and not (tmp_path / "trace").exists():
            made = [*world["trace"][:-4], "--length", "2", "--out", str(tmp_path / "trace")]
            assert run("trace", *made)[0] == 0
        monkeypatch.setattr(sys, "stdin", StringIO("abc\n"))
        arguments = [*world[one.verb[0]], f"{one.option}={value}"]
        if one.verb == ("train", "classifier"):
            arguments += ["--drafter", "zoo:general"]
        return run(*one.verb, *arguments)

    return typed


@pytest.mark.parametrize("one", some(ALL, 9), ids=str)
def test_whatever_is_typed_is_taken_or_refused_in_one_line(
    one: Numeric, typed: Callable[[Numeric, str], Result]
) -> None:
    for value in [*NEVER, "-1", "0", *HUGE]:
        status, out, err = typed(one, value)
        assert status in (0, 2), (value, err)
        if value in NEVER or (value == "-1" and one.option not in SIGNED):
            assert status == 2, f"{value!r} was taken"
        if status == 2:
            last = err.splitlines()[-1]
            assert out == "" and last.startswith("error: ") and err.count("error:") == 1, (value, err)
            assert err.count("\n") == 1, (value, err)
