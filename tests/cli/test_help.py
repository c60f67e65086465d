"""Help: every verb has examples that can be parsed, fits any terminal, reads the same from `help VERB`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import typer

from draftwise.cli import main
from draftwise.cli.app import app
from draftwise.train.settings import (
    ClassifierRun,
    DrafterRun,
    EagleRun,
    MedusaRun,
    RouterRun,
    list_defaults,
    read_options,
)
from draftwise.train.settings import Run as Training
from tests.effort import some

from .conftest import Refused, Run


def verbs(command: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from verbs(one, (*before, name))
        else:
            yield (*before, name), one


VERBS = dict(verbs(typer.main.get_command(app)))


def parsed(arguments: list[str]) -> Any:
    """Read a command line as it is read when it is run, without running it; return its context."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("draftwise", list(arguments))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_examples_can_be_parsed(verb: tuple[str, ...]) -> None:
    if verb == ("help",):
        return
    first, *examples, last = (VERBS[verb].epilog or "").splitlines()
    assert (first, last) == ("```sh", "```") and examples
    for example in examples:
        command = shlex.split(example.rpartition(" | ")[2].partition(" > ")[0])
        assert command[: len(verb) + 1] == ["draftwise", *verb], example
        parsed(command[1:])


def test_an_example_that_cannot_be_parsed_would_be_noticed() -> None:
    with pytest.raises(Exception, match=r"(?i)no such option"):
        parsed(["bench", "--out", "x", "--polices", "auto"])


@pytest.mark.parametrize("kind", [DrafterRun, EagleRun, MedusaRun, ClassifierRun, RouterRun])
def test_examples_of_training_have_the_options_that_it_needs(kind: type[Training]) -> None:
    verb = ("train", kind.__name__.removesuffix("Run").lower())
    for example in (VERBS[verb].epilog or "").splitlines()[1:-1]:
        given = parsed(shlex.split(example)[1:]).params
        assert read_options(kind, None, {name: given[name] for name in list_defaults(kind)}).data


@pytest.mark.parametrize("columns", some(["40", "80", "120"], 3))
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_is_whole_at_any_width_and_the_same_from_help_verb(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = run(*verb, "--help")
    assert (status, err) == (0, "")
    assert run("help", *verb) == (0, out, "")
    body = out.partition("\nExamples:")[0]
    assert "…" not in body
    for line in body.splitlines():
        assert len(line) <= int(columns) or line.split()[0].startswith("--"), line
    command: Any = VERBS[verb]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in body


def test_the_list_of_verbs_has_whole_sentences(run: Run) -> None:
    for arguments in ([], ["--help"], ["help"], ["train"], ["help", "train"]):
        out = run(*arguments)[1]
        assert "..." not in out.replace("COMMAND [ARGS]...", ""), arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["help", "genrate"], "did you mean generate?"),
        (["help", "train", "eagel"], "did you mean eagle?"),
        (["help", "bench", "x"], "leave it out"),
        (["policies", "autoo"], "did you mean auto?"),
        (["drafters", "ngrm"], "did you mean ngram?"),
        (["suggest", "zoo:targt"], "did you mean zoo:target?"),
        (["models", "--quiet", "--verbose"], "--quiet and --verbose contradict each other"),
    ],
)
def test_a_mistyped_name(refused: Refused, arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("generate --policy heds", []),
        ("generate --policy hedg", ["hedgespec", "hedgespec-hedge"]),
        ("generate --drafters ngram,suf", ["ngram,suffix"]),
        ("generate --target zoo:ta", ["zoo:target"]),
        ("policies banditspe", []),
        ("policies ucb", ["ucb1", "ucbspec"]),
        ("drafters earl", ["early-exit"]),
        ("bench --policies auto,static", ["auto,static"]),
        ("gener", ["generate"]),
    ],
)
def test_the_shell_completes_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, wanted: list[str]
) -> None:
    line = f"draftwise {typed}"
    asked = {"_DRAFTWISE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("generate", "--target", "zoo", ":", "ta"), ["target"]),
        (("generate", "--target", "zoo", ":"), ["target", "code", "general"]),
        (("generate", "--drafters", "zoo", ":", "code,zoo", ":", "gen"), ["general"]),
        (("generate", "--drafters", "zoo", ":", "code,suf"), ["code,suffix"]),
        (
            ("generate", "--target", "zoo", ":", "target", "--policy", "hedg"),
            ["hedgespec", "hedgespec-hedge"],
        ),
        (("generate", "--target", "zoo:ta"), ["zoo:target"]),  # bash may be set up not to split there
    ],
)
def test_bash_splits_words_at_colons(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    wanted: list[str],
) -> None:
    line = "\n".join(("draftwise", *words))
    asked = {"_DRAFTWISE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split()[: len(wanted)] == wanted


def test_completion_can_be_installed(run: Run) -> None:
    assert "--install-completion" in run("--help")[1]
