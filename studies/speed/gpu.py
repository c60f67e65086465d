"""Draftwise on a GPU: passes by width, exactness, speed of text beside Transformers' modes, waits a round.

    python -m studies.speed.gpu --out OUT                 the parts in turn, in at most eight minutes
    python -m studies.speed.gpu --out OUT --minutes 13    time for all of them
    python -m studies.speed.gpu --out OUT --only passes   one part
    python -m studies.speed.gpu --out OUT --cpu           every part at its smallest, on a CPU: no figures

Each part runs in a process of its own, so that one that fails, hangs or crashes leaves the others their time;
the last one takes what is left.
Rows are written to OUT/gpu.json as they come, and tables are printed at the end. Parts, the most telling
first:

- `first`: whether models are captured, the texts of graphs against eager ones in float32, and what the
  captures take in seconds and memory.
- `text`: tokens a second of the bundled target made heavier (its text stays the same), by policy, with graphs
  and eager, and of Transformers' compiled, plain, lookup and assisted modes.
- `rounds`: waits, launches and copies a round, the share of the time in which the GPU idles, and a timeline:
  milliseconds a round of each phase of the host, and how long the GPU computes meanwhile. What the policy
  learns late comes between the launch of a pass and the read of its result.
- `passes`: milliseconds of a pass of random weights in the shapes of published models, as a CUDA graph and
  eager, against the time that reading the weights takes.
- `exact`: the texts of `none`, `static-4` and `auto`, alone and in batches, against those of `none` alone, in
  three precisions, and with `exact=True` in the two that need it.
- `law`: sampled tokens with drafts and without, by chi-square.
- `head`: an EAGLE head, whose chains and trees are one replay.

`--cpu` runs the functions that are captured on a GPU as they are. To carry the project to a machine without a
network: its tree, the wheel of Transformers, and `zoo:target`, `zoo:general` and `zoo:eagle`.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from draftwise.errors import UserError
from draftwise.generation.prompts import prompt_ids
from draftwise.writing import write_text
from studies.common.command import command, listed, numbers, start
from studies.common.gpu_bench import Bench, device_name
from studies.common.parts import Row, Step, print_rows, run_part
from studies.common.tables import heading
from studies.common.tables import row as table_row
from studies.common.texts import generated, spread
from studies.exactness.sampled import third_tokens, two_samples

PAGE = "docs/explanation/pass-costs.md"
POLICIES = ("none", "auto", "static-8?drafter=ngram", "static-4", "static-16?drafter=suffix")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")
COPIES = ("Memcpy DtoH", "Memcpy HtoD")
PHASE = "phase: "  # how the names of a round's phases begin among the profiler's events
FEW = 4  # texts of what is slow
MINUTES = 8.0  # of all parts
HEAVY = (30, 28)  # how many times as wide, and layers: 1.0 billion weights
SMALLEST: Row = {  # with --cpu
    "shapes": ["tiny"],
    "widths": [1, 4],
    "precisions": ["float32"],
    "batches": [1, 3],
    "prompts": 2,
    "new": 6,
    "samples": 40,
    "rounds": 2,
}


def event_counts(names: Iterable[str], rounds: int) -> dict[str, float]:
    """Waits, launches and copies a round, from the names of the profiler's events."""
    kinds = (*WAITS, *LAUNCHES, *COPIES)
    counts = Counter(kind for name in names for kind in kinds if name.startswith(kind))
    return {kind: round(counts[kind] / rounds, 2) for kind in sorted(counts)}


def timeline(
    phases: Sequence[tuple[str, float, float]], busy: Sequence[tuple[float, float]], rounds: int
) -> list[Row]:
    """Milliseconds a round of each phase, and of what the GPU computed meanwhile.

    `phases` have a name, a begin and an end in microseconds; `busy` are the times in which a kernel ran.
    """
    ms: dict[str, list[float]] = {}
    busy = sorted(busy)
    for name, begin, end in phases:
        row, at = ms.setdefault(name, [0.0, 0.0]), begin
        row[0] += end - begin
        for first, last in busy:  # kernels may run beside each other
            row[1] += max(0.0, min(last, end) - max(first, at))
            at = max(at, min(last, end))
    each = 1e3 * rounds
    return [
        {"phase": name, "ms": round(whole / each, 3), "gpu_ms": round(part / each, 3)}
        for name, (whole, part) in ms.items()
    ]


def idle_share(phases: Sequence[tuple[str, float, float]], busy: Sequence[tuple[float, float]]) -> float:
    """The share of the time from the first phase to the end of the last in which no kernel ran."""
    begin, end = min(at for _, at, _ in phases), max(at for *_, at in phases)
    worked, done = 0.0, begin
    for first, last in sorted(busy):
        worked += max(0.0, min(last, end) - max(first, done))
        done = max(done, min(last, end))
    return round(1 - worked / (end - begin), 3)


def mark_phases(loop: Any) -> None:
    """Let the profiler see the phases of a loop's rounds."""
    from torch.profiler import record_function

    def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            with record_function(PHASE + name):
                return function(*given, **named)

        return run

    for name in ("decide", "draft", "accept", "grade", "learn"):
        setattr(loop, f"_{name}", marked(name, getattr(loop, f"_{name}")))
    loop.barrier.catch_up = marked("learn late", loop.barrier.catch_up)
    if loop.launcher is None:
        loop.target.verify = marked("verify", loop.target.verify)
        return
    launch = marked("launch", loop.target.launch)
    loop.target.launch = lambda batch: marked("read", launch(batch))


def equal_texts(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many texts are equal, and of how many."""
    return sum(list(a) == list(b) for a, b in zip(one, other, strict=True)), len(one)


def text_row(bench: Bench, decoder: Any, prompts: Sequence[Any], plain: list[Any]) -> Row:
    """Speed of texts at batch 1, and how many are those of `plain`, which the first call fills."""
    texts, seconds, rounds = bench.write_all(decoder, prompts, bench.args.new, 1)
    plain.extend(texts if not plain else ())
    total = sum(map(len, texts))
    return {
        "tokens_per_s": round(total / seconds, 1),
        "ms_per_round": round(1e3 * seconds / rounds, 3),
        "per_round": round(total / rounds, 2),
        "equal": equal_texts(plain[: len(texts)], texts),
        "state": bench.state,
    }


def measure_first(bench: Bench) -> Iterator[Step]:
    """The least that has to work: captures, and the texts of graphs."""
    import torch
    import transformers

    name = device_name() if bench.device == "cuda" else "cpu"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    cudnn: Any = torch.backends.cudnn  # its functions have no types
    versions |= {"cudnn": str(cudnn.version()), "matmul": torch.get_float32_matmul_precision()}
    yield lambda: {"device": name, **versions}
    model, plain = bench.target("float32"), list[Any]()

    def texts(policy: str, graphs: bool) -> Row:
        begin = perf_counter()
        decoder = bench.decoder(model, policy, "float32", graphs=graphs)
        row: Row = {"method": policy, "graphs": graphs, "s_to_load": round(perf_counter() - begin, 2)}
        return row | text_row(bench, decoder, bench.encoded(decoder)[:6], plain)

    for policy, graphs in (("none", False), ("none", True), ("static-4", True), ("auto", True)):
        yield partial(texts, policy, graphs)


def measure_text(bench: Bench) -> Iterator[Step]:
    """Tokens a second at batch 1 by size of the target, policy and kind of pass, and of Transformers."""
    plain: list[Any] = []

    def row(model: Any, size: float, policy: str, graphs: bool) -> Row:
        decoder = bench.decoder(model, policy, "bfloat16", graphs=graphs)
        prompts = bench.encoded(decoder)[: None if graphs else FEW]
        bench.write_all(decoder, prompts[:2], bench.args.new, 1)
        row: Row = {"billions": size, "method": f"{policy}, {'graphs' if graphs else 'eager'}"}
        row |= text_row(bench, decoder, prompts, plain)
        return row | {"gb": bench.gigabytes, "setup_s": round(decoder.loop.target.runner.setup_seconds, 2)}

    for times, layers in ((1, 12),) if bench.args.cpu else (HEAVY, (1, 12)):
        model = bench.target("bfloat16", times, layers)
        size = round(sum(p.numel() for p in model.parameters()) / 1e9, 2)
        for policy in POLICIES:
            yield partial(row, model, size, policy, True)
        yield from transformers_steps(bench, model, plain, size)
        for policy in ("none", "auto"):
            yield partial(row, model, size, policy, False)
        plain.clear()


def transformers_steps(bench: Bench, model: Any, plain: Sequence[Any], size: float) -> Iterator[Step]:
    """Tokens a second of Transformers' own modes, after texts that are not counted."""
    from draftwise.models.load import load_model, load_tokenizer

    small = load_model("zoo:general", dtype="bfloat16", device=bench.device, trust_remote_code=False)
    tokenizer = load_tokenizer("zoo:target", trust_remote_code=False)
    prompts = [prompt_ids(tokenizer, text) for text in spread(bench.args.prompts)]
    modes: dict[str, dict[str, Any]] = {
        "static, compiled": {"cache_implementation": "static"},
        "plain": {},
        "lookup": {"prompt_lookup_num_tokens": 8},
        "assisted": {"assistant_model": small},
    }

    def row(name: str, more: dict[str, Any]) -> Row:
        more = more | {"eos_token_id": 2, "pad_token_id": 0}
        some = prompts if "compiled" in name else prompts[:FEW]
        for prompt in some[:3]:
            generated(model, prompt, bench.args.new, **more)
        bench.wait()
        begin = perf_counter()
        texts = [generated(model, prompt, bench.args.new, **more) for prompt in some]
        bench.wait()
        rate = sum(map(len, texts)) / (perf_counter() - begin)
        same = sum(a == b[: len(a)] for a, b in zip(texts, plain, strict=False))
        row: Row = {"billions": size, "method": f"Transformers, {name}"}
        return row | {"tokens_per_s": round(rate, 1), "equal": (same, len(texts))}

    for name, more in modes.items():
        if bench.device == "cuda" or "compiled" not in name:
            yield partial(row, name, more)


def measure_rounds(bench: Bench) -> Iterator[Step]:
    """Waits, launches and copies a round at 1 B, and the share of the time in which the GPU idles."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from draftwise import Sampling

    model = bench.target("bfloat16", *(() if bench.args.cpu else HEAVY))
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    phases: list[Row] = []

    def row(policy: str, sampling: dict[str, Any]) -> Row:
        decoder = bench.decoder(model, policy, "bfloat16", graphs=True)
        prompts, loop, rounds = bench.encoded(decoder), decoder.loop, 0
        phases.clear()
        mark_phases(loop)
        bench.write_all(decoder, prompts[:3], bench.args.new, 1)
        loop.add(prompts[0], Sampling(max_new_tokens=10 + 5 * bench.args.rounds, seed=1, **sampling))
        loop.step()
        bench.wait()
        with profile(activities=kinds) as seen:
            while loop.open and rounds < bench.args.rounds:
                loop.step()
                rounds += 1
            bench.wait()
        while loop.open:
            loop.step()
        events = list(seen.events())
        times = [
            (event.name, event.device_type.name, event.time_range.start, event.time_range.end)
            for event in events
        ]
        marks = [(name.removeprefix(PHASE), *at) for name, on, *at in times if on == "CPU" and PHASE in name]
        busy = [(start, end) for name, on, start, end in times if on == "CUDA" and PHASE not in name]
        phases[:] = timeline(marks, busy, rounds)
        row: Row = {"method": policy, **sampling, "rounds": rounds}
        if bench.device == "cuda":
            row["idle"] = idle_share(marks, busy)
        return row | event_counts((event.name for event in events), rounds)

    for policy in ("none", "static-4", "static-8?drafter=ngram", "auto"):
        yield partial(row, policy, {})
        yield from (partial(dict, {"method": policy}, **phase) for phase in phases)
    yield partial(row, "static-4", {"temperature": 0.8})


def measure_passes(bench: Bench) -> Iterator[Step]:
    """Milliseconds of a pass after 512 tokens, by model, batch, width and kind of pass."""
    import torch

    from draftwise.models.probe import rows_of
    from draftwise.models.runner import PassInput
    from studies.common.shapes import model_of_shape

    def prepared(model: Any, size: float, name: str, kind: str, made: list[Any]) -> Row:
        runner = rows_of(model, probe=False)
        begin = perf_counter()
        state = bench.use_graphs(SimpleNamespace(runner=runner)) if kind == "graph" else "eager"
        made.append(runner)
        row: Row = {"model": name, "gb": round(size / 1e9, 2), "kind": kind, "state": state}
        return row | {"s": round(perf_counter() - begin, 2)}

    def timed(made: list[Any], name: str, kind: str, batch: int, width: int) -> Row:
        runner = made[0]

        def run() -> None:
            runner.cached_lengths[:] = [512] * batch
            runner.forward(PassInput(0, [[7] * width] * batch, width, slots=2048))

        while len(runner.request_ids) < batch:
            runner.open(len(runner.request_ids))
        if width == bench.args.widths[0]:
            runner.cached_lengths[:] = [0] * batch
            runner.forward(PassInput(0, torch.randint(5, 1000, (batch, 512)).tolist(), 1, slots=2048))
        return {"model": name, "kind": kind, "batch": batch, "width": width, "ms": bench.median_ms(run)}

    def growing(made: list[Any], name: str, first: int, has_cudnn: bool) -> Row:
        """Eager passes over one token, each after a length that is new: cuDNN plans for every one."""
        runner, lengths = made[0], count(first)

        def run() -> None:
            runner.cached_lengths[:] = [next(lengths)]
            runner.forward(PassInput(0, [[7]], 1, slots=2048))

        torch.backends.cuda.enable_cudnn_sdp(has_cudnn)
        ms = bench.median_ms(run)
        torch.backends.cuda.enable_cudnn_sdp(True)
        kind = f"eager, new lengths, {'any' if has_cudnn else 'no cuDNN'} attention"
        return {"model": name, "kind": kind, "batch": 1, "width": 1, "ms": ms}

    for name in bench.args.shapes:
        model = model_of_shape(name, torch.bfloat16, bench.device)
        size = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
        for kind in ("graph", "eager"):
            made: list[Any] = []
            yield partial(prepared, model, size, name, kind, made)
            for batch in (1, 8) if kind == "graph" else (1,):
                for width in bench.args.widths:
                    yield partial(timed, made, name, kind, batch, width)
            if kind == "eager":
                yield partial(growing, made, name, 600, True)
                yield partial(growing, made, name, 700, False)
        del model


def measure_exact(bench: Bench) -> Iterator[Step]:
    """Whether texts are those of plain decoding alone, by precision, policy, batch and `exact`."""
    plain: dict[tuple[str, bool], list[Any]] = {}

    def row(model: Any, dtype: str, policy: str, batch: int, exact: bool) -> Row:
        decoder = bench.decoder(model, policy, dtype, graphs=True, exact=exact)
        texts, seconds, _ = bench.write_all(decoder, bench.encoded(decoder), min(48, bench.args.new), batch)
        same = equal_texts(plain.setdefault((dtype, exact), texts), texts)
        rate = round(sum(map(len, texts)) / seconds, 1)
        row: Row = {"dtype": dtype, "method": policy, "batch": batch, "exact": exact}
        return row | {"equal": same, "tokens_per_s": rate, "state": bench.state}

    for dtype in bench.args.precisions:
        model = bench.target(dtype)
        for exact in (False, True) if dtype != "float32" else (False,):
            for policy in ("none", "static-4", "auto"):
                for batch in bench.args.batches:
                    yield partial(row, model, dtype, policy, batch, exact)


def measure_law(bench: Bench) -> Iterator[Step]:
    """The third token of sampled texts with drafts and without, by chi-square over the most likely ones."""
    model, counts = bench.target("float32"), dict[str, Counter[int]]()

    def row(policy: str, first: int) -> Row:
        decoder = bench.decoder(model, policy, "float32", graphs=True)
        counts[policy] = third_tokens(decoder, bench.encoded(decoder)[0], bench.args.samples, first)
        statistic, freedom, p = two_samples(counts["none"], counts[policy])
        return {"method": policy, "samples": bench.args.samples, "chi2": statistic, "df": freedom, "p": p}

    for place, policy in enumerate(("none", "static-3?drafter=zoo:general", "static-3?drafter=ngram")):
        yield partial(row, policy, place * bench.args.samples)


def measure_head(bench: Bench) -> Iterator[Step]:
    """The bundled EAGLE head as graphs and eager: speed of text, and whether it is the target's."""
    model, plain = bench.target("float32"), list[Any]()

    def row(policy: str, graphs: bool, tree: str = "") -> Row:
        head = f"eagle:zoo:eagle{tree}"
        decoder = bench.decoder(model, policy, "float32", graphs=graphs, drafters=(head,))
        prompts = bench.encoded(decoder)[:8]
        bench.write_all(decoder, prompts[:2], bench.args.new, 1)
        return {"method": policy + tree, "graphs": graphs} | text_row(bench, decoder, prompts, plain)

    for policy, graphs in (("none", False), ("static-4", False), ("static-4", True), ("auto", True)):
        yield partial(row, policy, graphs)
    for graphs in (False, True):
        yield partial(row, "static-4", graphs, "?width=4")


PARTS: dict[str, tuple[Callable[[Bench], Iterator[Step]], float]] = {  # with the most seconds of each
    "first": (measure_first, 90),
    "text": (measure_text, 150),
    "rounds": (measure_rounds, 100),
    "passes": (measure_passes, 120),
    "exact": (measure_exact, 90),
    "law": (measure_law, 45),
    "head": (measure_head, 75),
}


def show(rows: Sequence[Row]) -> None:
    """Print a table of each part."""
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        names = list(dict.fromkeys(name for row in mine for name in row if name not in ("part", "at")))
        print(f"\n{part}\n\n{heading(*names)}")
        for row in mine:
            print(table_row(*(row.get(name, "") for name in names)))


def limit(part: str, minutes: float) -> float:
    """The most seconds of a part, more where there are more minutes than by default."""
    return PARTS[part][1] * max(1.0, minutes / MINUTES)


def run_all(args: Namespace, given: Sequence[str]) -> list[Row]:
    """Run the parts, each in a process of its own, until the time is over; returns all rows."""
    rows, begin = list[Row](), perf_counter()

    def note(row: Row) -> None:
        rows.append(row | {"at": round(perf_counter() - begin, 1)})
        print(rows[-1], flush=True)
        write_text(args.out / "gpu.json", json.dumps(rows, indent=1))

    for part in args.only:
        left = 60 * args.minutes - (perf_counter() - begin)
        if left < 10:
            note({"part": part, "error": "no time was left"})
            continue
        line = [sys.executable, "-m", "studies.speed.gpu", *given, "--child", part]
        most = left if args.cpu or part == args.only[-1] else min(left, limit(part, args.minutes))
        if reason := run_part(line, most, note):
            note({"part": part, "error": reason})
    return rows


def options() -> Any:
    """The command line."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--only", type=listed, default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--precisions", type=listed, default="float32,bfloat16,float16")
    parser.add_argument("--batches", type=numbers, default="1,8,32")
    parser.add_argument("--shapes", type=listed, default="Qwen3-0.6B,Llama-3.2-1B,Qwen3-8B")
    parser.add_argument("--widths", type=numbers, default="1,2,4,8,16,32")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new", type=int, default=96, help="tokens of each text")
    parser.add_argument("--samples", type=int, default=2000, help="texts of `law`")
    parser.add_argument("--rounds", type=int, default=30, help="rounds that are profiled")
    parser.add_argument("--cpu", action="store_true", help="each part at its smallest, on a CPU: no figures")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="when the last part is ended")
    parser.add_argument("--child", default="", help="run this part here, and print its rows")
    parser.add_argument("--out", type=Path, required=True, help="gpu.json is written to this folder")
    return parser


def main() -> int:
    """Measure the parts; 1 if a float32 text differs, or a part or step failed."""
    args = options().parse_args()
    if args.cpu:
        vars(args).update(SMALLEST)
    if wrong := next((name for name in args.only if name not in PARTS), None):
        raise UserError(f"--only {wrong}: choose from {', '.join(PARTS)}")
    if args.child:
        return print_rows(args.child, PARTS[args.child][0](Bench(args)))
    if not args.cpu:
        device_name()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = run_all(args, sys.argv[1:])
    show(rows)
    exact = [row["equal"] for row in rows if row.get("dtype") == "float32" and "equal" in row]
    return int(any("error" in row for row in rows) or any(same < every for same, every in exact))


if __name__ == "__main__":
    start(main)
