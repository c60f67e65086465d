"""`draftwise train`: drafters, heads, classifiers and routers, on the target's own text."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from draftwise.train.settings import (
    ClassifierRun,
    DrafterRun,
    EagleRun,
    MedusaRun,
    RouterRun,
    Run,
    list_defaults,
    read_options,
)

from .command import Group, add
from .progress import progress, resumable
from .show import Result, table

app = typer.Typer(cls=Group, help="Train drafters, heads, classifiers and routers on the target's own text.")


OUT = Annotated[Path, "The folder to write; an interrupted training there is resumed."]
CONFIG = Annotated[Path | None, "A YAML file of options; options on the command line override it."]


def _verb(name: str, kind: type[Run], help: str) -> None:
    """One command whose options are the fields of `kind`, which the YAML file may also have."""

    def command(out: Path, config: Path | None, **options: Any) -> Result:
        run = read_options(kind, config, options)
        with resumable("training", out), progress("loading models") as tell:
            learn = import_module(f"draftwise.train.{name}").train
            results = learn(run, out, tell)
        return Result({"path": str(out), **results}, partial(_report, results, out))

    parameters = [
        Parameter("out", Parameter.KEYWORD_ONLY, annotation=OUT),
        Parameter("config", Parameter.KEYWORD_ONLY, annotation=CONFIG, default=None),
    ]
    hints = get_type_hints(kind)
    for option, (default, text) in list_defaults(kind).items():
        parameters.append(_parameter(option, hints[option], default, text))
    command.__name__, command.__doc__ = name, help
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": Result}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    add(app, command, name=name)


def _parameter(name: str, kind: Any, default: Any, text: str) -> Parameter:
    """An option that is None unless given, so that the YAML file can set it."""
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    if kind is bool:
        option = typer.Option(f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}", help=text)
        annotation: Any = bool | None
    else:
        option = typer.Option(help=f"{text} Default: {shown}." if shown else text)
        annotation = (kind if kind in (int, float) else str) | None
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, option], default=None)


_verb(
    "drafter",
    DrafterRun,
    """Train a small draft model by self-distillation, for one domain or all of them.

    Examples:
    draftwise train drafter --data prompts.jsonl --out my-drafter
    draftwise train drafter --data prompts.jsonl --target zoo:target --steps 500 --out my-drafter
    """,
)
_verb(
    "eagle",
    EagleRun,
    """Train an EAGLE or EAGLE-3 head on the target's hidden states.

    Examples:
    draftwise train eagle --data prompts.jsonl --out my-head
    """,
)
_verb(
    "medusa",
    MedusaRun,
    """Train Medusa heads on the target's last hidden state.

    Examples:
    draftwise train medusa --data prompts.jsonl --out my-heads
    """,
)
_verb(
    "classifier",
    ClassifierRun,
    """Train a classifier that stops drafts: DISCO's or SpecDec++'s.

    Examples:
    draftwise train classifier --data prompts.jsonl --drafter zoo:general --out my-classifier
    """,
)
_verb(
    "router",
    RouterRun,
    """Train a text classifier that chooses a drafter from the prompt.

    Examples:
    draftwise train router --data prompts.jsonl --routes code=zoo:code,sql=zoo:sql --out my-router
    """,
)


def _report(results: dict[str, Any], out: Path) -> None:
    after = results["after"]
    before = results.get("before", {})
    rows = [(name, _shown(before[name]) if name in before else "", _shown(after[name])) for name in after]
    table(("held out", "before", "after"), rows)
    if "speed" in results:
        from ..train.results import verdict

        print(verdict(results["speed"]))
    print("written:", out)


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.3f}"
