"""`draftwise trace`, `replay` and `oracle`: record drafts once, compare policies later."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from draftwise.core.roles import window_of
from draftwise.errors import pluralize
from draftwise.specs import parse_policy

from . import show
from .bench import draw, list_files
from .options import Policies, WorkloadOptions, distinct, parse_models, policy_names
from .progress import progress, resumable
from .show import Result, line, table

if TYPE_CHECKING:
    from draftwise import Sampling
    from draftwise.measure.trace import Costs, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions(WorkloadOptions):
    """Workload, models and what is recorded."""

    length: Annotated[int, "Longest recorded draft in tokens."] = 16
    temperature: Annotated[float, "Sampling temperature; at 0 replays are exact, above it unbiased."] = 0.0
    overlap: Annotated[
        bool, Option("--overlap", help="Also verify all drafts, for policies that use block divergence.")
    ] = False

    def sampling(self, eos: frozenset[int]) -> Sampling:
        from draftwise import Sampling

        seed = self.seed if self.temperature else None
        return Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature, eos=eos, seed=seed)


def trace(
    options: TraceOptions,
    out: Annotated[Path, "The folder to write; an interrupted recording there is resumed."],
) -> Result:
    """Record the target's text and all drafts, for `draftwise replay`, which needs no models.

    Examples:
    draftwise trace --per-category 2 --out my-trace
    draftwise trace --drafters ngram,suffix --workload mixed --out my-trace
    """
    from draftwise.measure.machine import load_average
    from draftwise.measure.trace import Trace, record
    from draftwise.measure.trace.files import check_recordable, write_samples
    from draftwise.measure.trace.results import trust
    from draftwise.measure.workloads import choose, encode_fitting, load
    from draftwise.measure.writing import check_reachable, refuse_benchmark
    from draftwise.models.threads import THREADS

    options.sampling(frozenset())  # a wrong setting is refused before anything is loaded
    check_recordable(options.length)
    refuse_benchmark(out)
    check_reachable(out)
    before = load_average()
    questions = load(options.workload, seed=options.seed)
    questions = choose(questions, per_category=options.per_category, limit=options.limit)
    specs = parse_models(options)
    with resumable("recording", out), progress("loading models") as tell:
        from draftwise import Decoder

        THREADS.keep()
        decoder = Decoder.from_specs(*specs, parse_policy("none"))
        models, team = decoder.loop.target, decoder.loop.pool.drafters
        encoded, left_out = encode_fitting(
            questions,
            partial(decoder.encode, chat=not options.raw),
            max_new_tokens=options.max_new_tokens,
            window=window_of(models),
        )
        prompts = [
            record.Prompt(str(questions[i].question_id), questions[i].category, ids) for i, ids in encoded
        ]
        sampling = options.sampling(decoder.eos)
        header = record.header_of(
            models,
            team,
            sampling,
            name=options.target,
            workload=options.workload,
            prompts=prompts,
            length=options.length,
            overlap=options.overlap,
            load={name: getattr(options, name) for name in ("dtype", "device", "compile", "exact")},
        )
        count = partial(tell, "recording")
        resumed = record.record(models, team, prompts, out, header, progress=count)
        write_samples(Trace(out), decoder.tokenizer)
        timed = partial(tell, "measuring costs, rounds")
        costs = record.record_costs(models, team, prompts, out, header, load=before, progress=timed)
    facts = {"path": str(out), "prompts": len(prompts), "resumed": resumed, "left_out": left_out}
    facts |= {"drafters": list(team), "length": options.length, "overlap": options.overlap} | trust(costs)
    return Result(facts, partial(_recorded, facts))


def _recorded(facts: dict[str, Any]) -> None:
    for prompt in facts["left_out"]:
        print(f"left out: {prompt}")
    print(
        f"{pluralize(facts['prompts'], 'prompt')} ({facts['resumed']} recorded before), drafts of up to "
        f"{pluralize(facts['length'], 'token')}, in {facts['path']}"
    )
    show.trust(facts, WHEN)


WHEN = "when the costs were measured"
Folder = Annotated[Path, Argument(help="A folder that `draftwise trace` wrote.", metavar="TRACE")]
Recorded = Annotated[str, "Comma-separated drafters of the trace. Default: all of them."]
CostFile = Annotated[
    str,
    "A file of seconds, a published profile, or c=NUMBER (cost of a draft token in target passes). "
    "Default: the costs measured with the trace.",
]


def replay(
    trace: Folder,
    out: Annotated[Path, "The folder for the results."],
    policies: Policies = "auto",
    drafters: Recorded = "",
    costs: CostFile = "",
    seed: Annotated[int, "Random seed of the policies."] = 0,
) -> Result:
    """Run policies on a trace; under greedy decoding the rounds equal those of live decoding.

    Examples:
    draftwise replay my-trace --out replayed
    draftwise replay my-trace --policies auto,ucb1,static-4 --costs c=0.05 --out replayed
    """
    from draftwise.measure.trace import Trace
    from draftwise.measure.trace.results import replayed

    names = policy_names(policies)
    recorded = Trace(trace, distinct(drafters, "--drafters"))
    with progress("replaying") as tell:
        count = partial(tell, "prompts")
        results = replayed(recorded, names, costs_of(recorded, costs), out, seed=seed, progress=count)
    draw(out)
    return Result(results, partial(_replayed, results, out))


def _replayed(results: dict[str, Any], out: Path) -> None:
    rows = [row for row in results["results"] if row["category"] == "all"]
    optima = [row.get("fraction_of_optimum") for row in rows]
    shares = ["" if optimum is None else f"{100 * optimum:.1f} %" for optimum in optima]
    cells = [[*show.speeds(row), share] for row, share in zip(rows, shares, strict=True)]
    table((*show.SPEEDS, "of the optimum"), cells)
    show.trust(results, WHEN)
    list_files(out)


def costs_of(trace: Trace, name: str) -> Costs:
    """The given costs, or those measured with the trace."""
    from draftwise.measure.trace import read_costs

    return read_costs(name or str(trace.folder / "costs.json"))


def oracle(
    trace: Folder,
    drafters: Recorded = "",
    costs: CostFile = "",
    out: Annotated[Path | None, "Also write oracle.json to this folder."] = None,
) -> Result:
    """Compute the shortest time over all choices of drafter and length, and the times of fixed arms.

    "composite" is the shortest time if one draft may have parts of several drafters.

    Examples:
    draftwise oracle my-trace
    draftwise oracle my-trace --costs c=0.1 --drafters ngram,suffix
    """
    from draftwise.measure.trace import Trace
    from draftwise.measure.trace.results import compute_oracle
    from draftwise.measure.writing import make_folder
    from draftwise.writing import write_json

    recorded = Trace(trace, distinct(drafters, "--drafters"))
    if out is not None:
        make_folder(out)
    with progress("computing the optimum") as tell:
        results = compute_oracle(recorded, costs_of(recorded, costs), progress=partial(tell, "prompts"))
    if out is not None:
        write_json(out / "oracle.json", results)
    return Result(results, partial(_optimum, results, out))


def _optimum(results: dict[str, Any], out: Path | None) -> None:
    table(ORACLE_COLUMNS, [_oracle_cells(row) for row in results["results"]])
    line("Seconds; in parentheses, the optimum as a percentage of them.")
    show.trust(results, WHEN)
    if out is not None:
        print(f"written: {out / 'oracle.json'}; show it in a report with: draftwise report {out}")


ORACLE_COLUMNS = (
    "category",
    "tokens",
    "optimum",
    "composite",
    "best fixed in hindsight",
    "DISCO's oracle",
    "none",
)


def _oracle_cells(row: dict[str, Any]) -> list[str]:
    fixed, least = row["best_fixed"], row["optimum"]
    arm = f"{fixed['drafter']}:{fixed['length']}" if fixed["length"] else "none"
    who, just = min(row["exactly"].items(), key=lambda pair: pair[1]) if row["exactly"] else ("", None)

    def share(seconds: float) -> str:
        return f"{seconds:.2f} ({100 * least / seconds:.0f} %)"

    return [
        row["category"],
        str(row["new_tokens"]),
        f"{least:.2f}",
        f"{row['optimum_composite']:.2f}",
        f"{arm} {share(fixed['seconds'])}",
        "" if just is None else f"{who} {share(just)}",
        share(row["none"]),
    ]
