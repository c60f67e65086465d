"""All verbs as one Typer app, and what their errors look like."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from draftwise.errors import GenerationError, UserError
from draftwise.inputs import whole
from draftwise.registry import meant

from . import prepare
from .bench import bench, report, tune
from .command import WIDEST, Command, Group, Quiet, Verbose, add
from .demo import demo
from .doctor import doctor
from .generate import chat, generate
from .lists import drafters, models, policies, suggest
from .serve import serve
from .show import set_level, to_stderr
from .simulate import simulate
from .traces import oracle, replay, trace

# Late versions of Typer carry their own copy of Click; this is ClickException in all of them.
CommandError: type[Exception] = typer.BadParameter.__mro__[2]

PANELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Write": (demo, generate, chat, serve),
    "Choose": (models, drafters, policies, suggest),
    "Measure": (bench, tune, report, trace, replay, oracle, simulate),
}
MAKE = "Prepare"

app = typer.Typer(
    name="draftwise",
    help="Adaptive speculative decoding: the model's own text, faster.",
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut names where the terminal is narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, verbs in PANELS.items():
    for verb in verbs:
        add(app, verb, panel=panel)
app.add_typer(prepare.training, name="train", rich_help_panel=MAKE)
app.add_typer(prepare.datastore, name="datastore", rich_help_panel=MAKE)
add(app, prepare.compile_, name="compile", panel=MAKE)
add(app, prepare.merge, panel=MAKE)
add(app, prepare.export, panel=MAKE)
add(app, doctor, panel="Help")


@app.command("help", cls=Command, rich_help_panel="Help")
def help_(
    context: typer.Context,
    verb: Annotated[list[str] | None, typer.Argument(help="A command, such as bench or train eagle.")] = None,
) -> None:
    """Print the help of a command."""
    root: Any = context.find_root()
    here = root
    for name in verb or []:
        commands = getattr(here.command, "commands", {})
        if name not in commands:
            problem = f"unknown command {name!r}: {meant(name, commands)}"
            raise UserError(
                f"{problem}choose from {', '.join(commands)}" if commands else f"{problem}leave it out"
            )
        here = type(root)(commands[name], info_name=name, parent=here)
    typer.echo(here.get_help())


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"draftwise {version('draftwise')}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Adaptive speculative decoding: the model's own text, faster."""
    set_level(quiet=quiet, verbose=verbose)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; gives the exit status."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        _drop_output()  # the reader has left
        return 1
    except UnicodeEncodeError as error:
        if error.encoding == "utf-8":
            raise  # half a character, which no output takes
        missing = error.object[error.start]
        return _fail(
            f"standard output is {sys.stdout.encoding}, which has no {missing!r}: set PYTHONIOENCODING=utf-8"
        )
    except OSError as error:
        if error.errno is None or isinstance(error, (ConnectionError, TimeoutError)):
            raise  # what a library says, or a network, is not about a file
        _drop_output()
        name = error.filename2 or error.filename
        what = f"use {name}" if name else "write the output"
        return _fail(f"cannot {what}: {error.strerror}; free it, or name another place")


def _run(arguments: Sequence[str]) -> int:
    """Run a command line whose output can be written."""
    try:
        for argument in arguments:
            whole(argument, "an argument")  # Python reads bytes that are not UTF-8 as halves of characters
        width = min(shutil.get_terminal_size().columns, WIDEST)
        with to_stderr():
            status = app(list(arguments), prog_name="draftwise", standalone_mode=False, terminal_width=width)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error))
    except GenerationError as error:
        first = next(iter(error.errors.values()))
        if not isinstance(first, UserError):
            raise
        return _fail(str(first))
    except CommandError as error:
        return _fail(_usage(error))
    except typer.Abort:
        return 130
    return status if isinstance(status, int) else 0


def _drop_output() -> None:
    """Write what standard output still holds, or else drop it: it must not fail a second time at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "draftwise"
    message = message.rstrip(".")
    if callable(problems := getattr(error.__cause__, "errors", None)):  # late Typers name no value
        value = repr(problems()[0]["input"])
        message += "" if value in message else f", got {value}"
    return f"{message}{'' if message.endswith('?') else ';'} see {command} --help"


def _fail(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2
