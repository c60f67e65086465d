"""`draftwise generate`: one prompt, its text streamed."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.errors import UserError

from . import show
from .explain import reasons_of, show_reasons
from .options import AsJson, ModelOptions, SamplingOptions, read_prompt, with_options

if TYPE_CHECKING:
    from draftwise.generation.decoder import Decoder


MOST_SAMPLES = 1024


@with_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    models: ModelOptions,
    sampling: SamplingOptions,
    samples: Annotated[int, typer.Option("--samples", "-n", help="How many texts to draw.")] = 1,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template around the prompt.")] = False,
    explain: Annotated[
        bool, typer.Option(help="Also, to stderr: why the policy auto chose what it chose.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also a closing line to stderr.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the target's text after a prompt, coloured by the drafter that guessed it."""
    text = read_prompt(prompt)
    if not 1 <= samples <= MOST_SAMPLES:
        raise UserError(
            f"--samples {samples}: ask for 1 to {MOST_SAMPLES}, drawn as one batch; for more, run again "
            "with another --seed"
        )
    decoder = models.load(seed=sampling.seed)
    why = reasons_of(decoder) if explain else None
    settings = {**sampling.settings(), "chat": not raw}
    colours = show.styles(models.drafter_names)
    report = verbose or sampling.logprobs
    if as_json or samples > 1:
        _whole(decoder, text, samples, settings, colours, as_json=as_json, report=report)
    else:
        _stream(decoder, text, settings, colours, report=report)
    if why is not None:
        show_reasons(why, models.drafter_names)


def _whole(
    decoder: Decoder,
    text: str,
    samples: int,
    settings: dict[str, Any],
    colours: dict[str, str],
    *,
    as_json: bool,
    report: bool,
) -> None:
    with show.waiting("Writing"):
        output = decoder.generate(text, n=samples, **settings)
    texts = output.samples if samples > 1 else [output]
    if as_json:
        extra = {"samples": [show.as_dict(sample) for sample in texts]} if samples > 1 else {}
        show.dump({**show.as_dict(output), **extra})
        return
    for number, sample in enumerate(texts):
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
    pieces = iter(decoder.stream(text, **settings))
    stopped = False
    try:
        with show.waiting("Reading the prompt"):
            first = next(pieces, None)
        for piece in chain([first] if first else [], pieces):
            writer.write(piece)
    except KeyboardInterrupt:
        stopped = True
    writer.end()
    if writer.terminal:
        writer.terminal.print(show.legend(colours))
    if not stopped:
        show.report(decoder.last, wanted=report)
    else:
        raise typer.Exit(130)
