"""`draftwise generate` and `chat`: text for one prompt, or for each turn of a conversation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.errors import UserError

from . import show
from .command import AsJson
from .options import ModelOptions, PrefixCache, Raw, SamplingOptions
from .progress import waiting
from .show import read_prompt, standard_input, table, verbose

if TYPE_CHECKING:
    from draftwise.generation.decoder import Chat, Decoder
    from draftwise.generation.output import Output
    from draftwise.generation.text import Piece
    from draftwise.policies.auto.drafts import Reason


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    models: ModelOptions,
    sampling: SamplingOptions,
    samples: Annotated[
        int, typer.Option("--samples", "-n", help="Number of texts, decoded as one batch.", min=1, max=1024)
    ] = 1,
    raw: Raw = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print to stderr why the policy auto chose each arm.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Generate text after a prompt, coloured by the drafter that guessed it.

    Examples:
    draftwise generate "Why is the sky blue?"
    draftwise generate "def add(a, b):" --raw --drafters ngram --explain
    draftwise generate "A poem about rain" --temperature 0.8 --top-p 0.9 --seed 1 --samples 3
    cat question.txt | draftwise generate - --json
    """
    text = read_prompt(prompt)
    sampling.check()
    if explain and models.specs[2].name != "auto":
        raise UserError("--explain: only the policy auto gives reasons; leave out --policy or --explain")
    decoder = models.load(seed=sampling.seed)
    reasons: list[Reason] = []
    if explain:
        policy: Any = decoder.loop.policy
        policy.reasons = reasons
    settings = {**sampling.settings(), "chat": not raw}
    colours = show.styles(decoder.loop.pool.drafters)
    report = verbose() or sampling.logprobs
    if as_json or samples > 1:
        with waiting("generating"):
            output = decoder.generate(text, n=samples, **settings)
        if as_json:
            more = {"samples": [show.as_dict(sample) for sample in output.samples]} if samples > 1 else {}
            show.dump({**show.as_dict(output), **more})
        else:
            _show_samples(output.samples, colours, report=report)
    else:
        _stream(decoder, text, settings, colours, report=report)
    if explain:
        show_reasons(reasons, models.drafter_names)


def _show_samples(samples: Sequence[Output], colours: dict[str, str], *, report: bool) -> None:
    for number, sample in enumerate(samples):
        writer = show.Writer(colours)
        if number:
            print()
        for piece in sample.pieces:
            writer.write(piece)
        writer.end()
        show.report(sample, wanted=report)


def _stream(
    decoder: Decoder, text: str, settings: dict[str, Any], colours: dict[str, str], *, report: bool
) -> None:
    writer = show.Writer(colours)
    stopped = False
    try:
        _write(iter(decoder.stream(text, **settings)), writer)
    except KeyboardInterrupt:
        stopped = True
    writer.end()
    if writer.terminal:
        writer.terminal.print(show.legend(colours))
    if not stopped:
        show.report(decoder.last, wanted=report)
    else:
        raise typer.Exit(130)


def _write(pieces: Iterator[Piece], writer: show.Writer) -> None:
    """Write the pieces of a text as they arrive, after a spinner while the prompt is read."""
    with waiting("prefill"):
        first = next(pieces, None)
    for piece in chain([first] if first else [], pieces):
        writer.write(piece)


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
    colours, settings = show.styles(decoder.loop.pool.drafters), sampling.settings()
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
    except KeyboardInterrupt:
        if not person:
            raise
        print(f"\n{HELP}")  # as in a shell, the line alone is dropped: an answer may just have ended
        return ""


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
            _write(pieces, writer)
        except KeyboardInterrupt:
            if not writer.terminal:
                raise
    writer.end()
    show.report(session.last, wanted=settings["logprobs"])


STRETCH = 16  # tokens in one row
CELL = "tokens for time: worth in tokens"


def show_reasons(reasons: Sequence[Reason], drafters: Sequence[str]) -> None:
    names = [name for name in drafters if name != "none"]
    heads = ("tokens", "tokens/s", "played", *(f"{name} ({CELL})" for name in names))
    table(heads, list(rows(reasons, names)), stream=sys.stderr)


def rows(reasons: Sequence[Reason], drafters: Sequence[str]) -> Iterator[list[str]]:
    """One row for 16 tokens: position, rate, arms played, and the means of each drafter's expected tokens,
    milliseconds and gain in tokens; no numbers while its cost is unknown."""
    for stretch, group in groupby(reasons, lambda reason: reason.position // STRETCH):
        own = list(group)
        pulls = Counter("off" if r.paused else r.arm.name for r in own)
        yield [
            f"{stretch * STRETCH}-{(stretch + 1) * STRETCH - 1}",
            f"{sum(r.rate for r in own) / len(own):.0f}",
            ", ".join(f"{name} x{n}" for name, n in pulls.most_common()),
            *(_promise(own, i) for i in range(len(drafters))),
        ]


def _promise(reasons: Sequence[Reason], drafter: int) -> str:
    own = [candidate for reason in reasons for candidate in reason.candidates if candidate.drafter == drafter]
    candidates = [candidate for candidate in own if not candidate.trial]
    if not candidates:
        return "being tried" if own else "-"
    n = len(candidates)
    tokens, seconds, gain = (
        sum(getattr(w, key) for w in candidates) / n for key in ("tokens", "seconds", "gain")
    )
    return f"{tokens:.1f} for {1000 * seconds:.1f} ms: {gain:+.1f}"
