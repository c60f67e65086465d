"""`draftwise generate`: one prompt, with its text streamed."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.errors import UserError

from . import show
from .explain import gives_reasons, reasons_of, show_reasons
from .logs import verbose
from .options import AsJson, ModelOptions, Raw, SamplingOptions
from .progress import waiting
from .reading import read_prompt

if TYPE_CHECKING:
    from draftwise.generation.decoder import Decoder


MOST_SAMPLES = 1024


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    models: ModelOptions,
    sampling: SamplingOptions,
    samples: Annotated[
        int, typer.Option("--samples", "-n", help="Number of texts, decoded as one batch.")
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
    if not 1 <= samples <= MOST_SAMPLES:
        raise UserError(
            f"--samples {samples}: give 1 to {MOST_SAMPLES}; for more, run again with another --seed"
        )
    sampling.check()
    if explain:
        gives_reasons(models.method().policy)
    decoder = models.load(seed=sampling.seed)
    why = reasons_of(decoder) if explain else None
    settings = {**sampling.settings(), "chat": not raw}
    colours = show.styles(models.drafter_names)
    report = verbose() or sampling.logprobs
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
    with waiting("generating"):
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
        with waiting("prefill"):
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
