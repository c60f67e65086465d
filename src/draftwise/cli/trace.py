"""`draftwise trace`: what every drafter would draft at every position of the target's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from typer import Option

from draftwise.core.roles import window_of
from draftwise.errors import UserError

from . import show
from .options import AsJson, drafters_of, with_options

if TYPE_CHECKING:
    from draftwise import Sampling
    from draftwise.data import Prompt as Question
    from draftwise.generation.decoder import Decoder
    from draftwise.measure.trace.record import Prompt

REDRAW_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What is written, who drafts, and how much of it is recorded."""

    target: Annotated[str, Option(help="Whose text: zoo:NAME, a folder or a Hugging Face id.")] = "zoo:target"
    drafters: Annotated[
        str | None,
        Option(
            help="Who drafts, with commas between. Default: ngram,suffix; zoo:general too for zoo:target."
        ),
    ] = None
    workload: Annotated[
        str, Option(help="As for `draftwise bench`: spec-bench, mixed, phased ... or a JSONL file.")
    ] = "spec-bench"
    limit: Annotated[int, Option(help="At most so many prompts; 0 = all.")] = 0
    per_category: Annotated[int, Option(help="The first so many prompts of each category; 0 = all.")] = 0
    length: Annotated[int, Option(help="Record drafts of up to so many tokens.")] = 16
    max_new_tokens: Annotated[int, Option(help="Write at most so many tokens.")] = 128
    temperature: Annotated[float, Option(help="0: replays are exact; above it they are expectations.")] = 0.0
    seed: Annotated[int, Option(help="For drawing, and for drawn workloads.")] = 0
    overlap: Annotated[
        bool, Option("--overlap", help="Verify all drafts too, for policies on block divergence.")
    ] = False
    raw: Annotated[bool, Option("--raw", help="No chat template around the prompts.")] = False
    dtype: Annotated[str, Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto"
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run the code in the model's folder.")
    ] = False

    def load(self) -> Decoder:
        """The models."""
        names = drafters_of(self.target, self.drafters)
        with show.waiting(f"Loading {self.target}"):
            from draftwise import Decoder

            return Decoder.from_pretrained(
                self.target,
                drafters=names,
                policy="none",
                dtype=self.dtype,
                device=self.device,
                trust_remote_code=self.trust_remote_code,
            )

    def sampling(self, eos: frozenset[int]) -> Sampling:
        """How the text is written."""
        from draftwise import Sampling

        seed = self.seed if self.temperature else None
        return Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature, eos=eos, seed=seed)


@with_options
def trace(
    options: TraceOptions,
    out: Annotated[Path, Option(help="The folder to make; an interrupted recording goes on there.")],
    as_json: AsJson = False,
) -> None:
    """Record the target's text and all drafts once; `draftwise replay` then needs no models."""
    from draftwise.measure.machine import load_average
    from draftwise.measure.trace import Trace, record
    from draftwise.measure.trace.results import trust
    from draftwise.measure.trace.samples import write_samples
    from draftwise.measure.workloads import choose, load

    before = load_average()
    found = load(options.workload, seed=options.seed)
    found = choose(found, per_category=options.per_category, limit=options.limit)
    decoder = options.load()
    prompts, left_out = encoded(decoder, found, options.max_new_tokens, raw=options.raw)
    models, team, sampling = decoder.loop.target, decoder.loop.team.drafters, options.sampling(decoder.eos)
    header = record.header_of(
        models,
        team,
        sampling,
        name=options.target,
        workload=options.workload,
        prompts=prompts,
        length=options.length,
        overlap=options.overlap,
    )
    with progress("Recording") as tell:
        known = record.record(models, team, prompts, out, header, sampling, progress=tell)
    write_samples(Trace(out), decoder.tokenizer)
    with show.waiting("Measuring what the parts of a round cost"):
        costs = record.measured(models, team, prompts, out, header, sampling, load=before)
    if as_json:
        made = {"path": str(out), "prompts": len(prompts), "resumed": known, "left_out": left_out}
        made |= {"drafters": list(team), "length": options.length, "overlap": options.overlap}
        show.dump(made | trust(costs))
        return
    for line in left_out:
        print(f"left out: {line}")
    print(f"{len(prompts)} prompts ({known} were there), drafts of up to {options.length} tokens, in {out}")
    show.trust(trust(costs), "when the costs were measured")


def encoded(
    decoder: Decoder, found: Sequence[Question], max_new_tokens: int, *, raw: bool
) -> tuple[list[Prompt], list[str]]:
    """The prompts as tokens; those that leave no room for the answer are left out, and named."""
    from draftwise.measure.trace.record import Prompt

    prompts, left_out = [], []
    window = window_of(decoder.loop.target)
    for question in found:
        ids = decoder.encode(question.text, chat=not raw)
        if len(ids) + max_new_tokens > window:
            name = f"{question.category} {question.question_id}"
            left_out.append(f"{name}: {len(ids)} tokens and {max_new_tokens} new ones, window {window}")
        else:
            prompts.append(Prompt(str(question.question_id), question.category, ids))
    if not prompts:
        raise UserError(f"no prompt fits the target's window: {left_out[0]}")
    return prompts, left_out


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with the time left; nothing where stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = show.console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, drawn = bar.add_task(what, total=None), monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal drawn
            if monotonic() - drawn > REDRAW_SECONDS or done == total:
                bar.update(task, completed=done, total=total)
                drawn = monotonic()

        yield tell
