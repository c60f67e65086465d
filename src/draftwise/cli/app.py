"""All verbs as one Typer app, and what their errors look like."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from draftwise.errors import UserError

from . import datastore, train
from .bench import bench
from .chat import chat
from .demo import demo
from .generate import generate
from .lists import drafters, models, policies
from .merge import merge
from .options import utf8
from .oracle import oracle
from .replay import replay
from .report import report
from .simulate import simulate
from .trace import trace
from .tune import tune

# Late versions of Typer carry their own copy of Click; this is ClickException in all of them.
CommandError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="draftwise",
    help="Adaptive speculative decoding: the model's own text, faster.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    demo,
    generate,
    chat,
    models,
    drafters,
    policies,
    bench,
    tune,
    report,
    simulate,
    trace,
    replay,
    oracle,
    merge,
):
    app.command()(verb)
app.add_typer(datastore.app, name="datastore")
app.add_typer(train.app, name="train")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"draftwise {version('draftwise')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Adaptive speculative decoding: the model's own text, faster."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run a command line; gives the exit status."""
    try:
        for given in arguments:
            utf8(given, "an argument")
        status = app(list(arguments), prog_name="draftwise", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error))
    except CommandError as error:
        return _fail(_usage(error))
    except typer.Abort:
        return 130
    except BrokenPipeError:
        # The reader has left; what is still buffered must not fail a second time at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status if isinstance(status, int) else 0


def _usage(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "draftwise"
    return f"{message.rstrip('.')}; see {command} --help"


def _fail(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2
