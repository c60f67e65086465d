"""`draftwise chat`: a conversation that keeps its KV caches from turn to turn."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftwise.errors import UserError

from . import show
from .options import AsJson, ModelOptions, PrefixCache, SamplingOptions
from .reading import standard_input

if TYPE_CHECKING:
    from draftwise.generation.chat import Chat

HELP = "/reset starts a new conversation; /exit or Ctrl-D leaves; Ctrl-C ends an answer"


def chat(
    models: ModelOptions,
    sampling: SamplingOptions,
    prefix_cache: PrefixCache = 1024.0,
    as_json: AsJson = False,
) -> None:
    """Chat with the target; each line of piped input is one turn.

    /reset starts a new conversation, /exit or Ctrl-D leaves, and Ctrl-C ends an answer.

    Examples:
    draftwise chat
    draftwise chat --drafters suffix --temperature 0.7
    """
    sampling.check()
    decoder = models.load(seed=sampling.seed, prefix_cache=prefix_cache)
    colours, settings = show.styles(models.drafter_names), sampling.settings()
    person = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if person:
        console = show.console()
        console.print(HELP, style="dim")
        console.print(show.legend(colours))
    session = decoder.chat()
    try:
        while (line := _read(person)) is not None and line != "/exit":
            if line == "/reset":
                session.close()
                session = decoder.chat()
            elif line.startswith("/") and line[1:].isalpha():
                _tell(f"unknown command {line}: {HELP}", person)
            elif line:
                try:
                    _answer(session, line, settings, colours, as_json=as_json)
                except UserError as error:
                    _tell(str(error), person)
    finally:
        session.close()


def _read(person: bool) -> str | None:
    """The next line without surrounding spaces; None at the end of the input."""
    if person:
        with suppress(ImportError):  # not built on every system
            import_module("readline")  # gives input() a history and line editing
    try:
        return standard_input(partial(input, "> " if person else "")).strip()
    except EOFError:
        if person:
            print()
        return None


def _tell(message: str, person: bool) -> None:
    """Print a mistake on a terminal; otherwise it ends the command."""
    if not person:
        raise UserError(message)
    print("error:", message, file=sys.stderr)


def _answer(
    session: Chat, line: str, settings: dict[str, Any], colours: dict[str, str], *, as_json: bool
) -> None:
    if as_json:
        for _ in session.send(line, **settings):
            pass
        show.dump(show.as_dict(session.last))
        sys.stdout.flush()
        return
    writer = show.Writer(colours)
    # Closed at once, so that an interrupted answer is part of the conversation before the next turn.
    with closing(session.send(line, **settings)) as pieces:
        try:
            for piece in pieces:
                writer.write(piece)
        except KeyboardInterrupt:
            if not writer.terminal:
                raise
    writer.end()
    show.report(session.last, wanted=settings["logprobs"])
