"""`draftwise train`: drafters, heads, classifiers and routers, from the target's own text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from draftwise.train.reading import defaults, read
from draftwise.train.settings import ClassifierRun, DrafterRun, EagleRun, MedusaRun, RouterRun, Run

from . import show
from .options import AsJson
from .tables import table

EVERY = 10.0  # seconds between two lines of progress where nobody looks at a terminal

app = typer.Typer(help="Train drafters, heads, classifiers and routers on the target's own text.")


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Train drafters, heads, classifiers and routers on the target's own text."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


OUT = Annotated[Path, typer.Option(help="The folder to make; an interrupted training goes on there.")]
CONFIG = Annotated[Path | None, typer.Option(help="A YAML file of options; those given here go first.")]


def _verb(name: str, kind: type[Run], help: str) -> None:
    """One command whose options are the fields of `kind`, every one also an entry of the YAML file."""

    def command(out: Path, config: Path | None, as_json: bool, **given: Any) -> None:
        run = read(kind, config, given)
        learn = import_module(f"draftwise.train.{name}").train
        try:
            with progress() as tell:
                results = learn(run, out, tell)
        except KeyboardInterrupt:
            print(f"interrupted; the same command goes on in {out}", file=sys.stderr)
            raise typer.Exit(130) from None
        _report(results, out, as_json=as_json)

    parameters = [
        Parameter("out", Parameter.KEYWORD_ONLY, annotation=OUT),
        Parameter("config", Parameter.KEYWORD_ONLY, annotation=CONFIG, default=None),
    ]
    hints = get_type_hints(kind)
    for option, (default, said) in defaults(kind).items():
        parameters.append(_parameter(option, hints[option], default, said))
    parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, annotation=AsJson, default=False))
    command.__name__, command.__doc__ = name, help
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    app.command(name)(command)


def _parameter(name: str, kind: Any, default: Any, said: str) -> Parameter:
    """An option that is None where it is not given, so that the YAML file can have it."""
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    if kind is bool:
        option = typer.Option(f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}", help=said)
        given: Any = bool | None
    else:
        option = typer.Option(help=f"{said} Default: {shown}." if shown else said)
        given = (kind if kind in (int, float) else str) | None
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[given, option], default=None)


_verb("drafter", DrafterRun, "A small model by self-distillation: one domain, or all of them.")
_verb("eagle", EagleRun, "An EAGLE or EAGLE-3 head on the target's hidden states.")
_verb("medusa", MedusaRun, "Medusa's heads on the target's last hidden state.")
_verb("classifier", ClassifierRun, "A classifier that stops drafts: DISCO's or SpecDec++'s.")

_verb("router", RouterRun, "A text classifier that picks a drafter from the prompt.")


def _report(results: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """What came of it."""
    if as_json:
        show.dump({"path": str(out), **results})
        return
    after = results["after"]
    before = results.get("before", {})
    rows = [(name, f"{before[name]:.3f}" if name in before else "", f"{after[name]:.3f}") for name in after]
    table(("held out", "before", "after"), rows)
    print("written:", out)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left where stderr is a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        started, last = dict[str, tuple[float, int]](), [time.monotonic()]

        def line(what: str, done: int, total: int) -> None:
            now = time.monotonic()
            since, first = started.setdefault(what, (now, done))
            if now - last[0] >= EVERY and done > first:
                last[0] = now
                left = round((now - since) / (done - first) * (total - done))
                print(f"{what} {done}/{total}; {left // 60}:{left % 60:02} left", file=sys.stderr)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=show.console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def draw(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield draw
