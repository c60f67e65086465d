"""An hour of real traffic, replayed on vLLM: plain, its n-gram drafts, and `auto`, with a restart halfway.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one) on a quiet machine. When requests come, to
which of two services (chat, completion of code) and how long they are is that of the Azure LLM inference
trace 2023 (github.com/Azure/AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024), of which
traffic.csv has every eightieth request. The trace has no texts: chats are made of Spec-Bench's questions,
code of the functions in `--data`, each cut to the trace's number of tokens or to what the model takes. A text
ends where the model ends it, or at the trace's length.

The hour runs `--speed` times faster. Halfway each engine ends and a new one starts; `auto` finds its state,
and `auto, no state` does not. Reported for each tenth of the hour: tokens, and how long requests took from
their arrival (50 and 99 % were shorter), in seconds.
"""

from __future__ import annotations

import json
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator, Sequence
from csv import DictReader
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from draftwise.data import spec_bench
from draftwise.errors import UserError
from studies.common import vllm
from studies.common.command import command, start
from studies.common.tables import heading, row

PAGE = "docs/how-to/cluster.md"
HOUR, PARTS = 3600.0, 10
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
AUTO = {"drafters": "ngram,suffix", "policy": "auto"}
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "vLLM's n-gram, 3": NGRAM | {"num_speculative_tokens": 3},
    "auto": AUTO | {"state": "state.json"},
    "auto, no state": AUTO,
}


class Arrival(NamedTuple):
    """A request of the trace: when it comes, to whom, and how long its prompt and its answer are."""

    seconds: float
    service: str
    context: int
    generated: int


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/code_python/test.jsonl"))
    parser.add_argument("--speed", type=float, default=10.0, help="times faster than the trace")
    parser.add_argument("--cores", default="0-1", help="cores that vLLM's threads are bound to")
    parser.add_argument("--one", help=SUPPRESS)
    options = parser.parse_args()
    if not options.data.is_file():
        raise UserError(f"--data {options.data}: no such file; name one of functions, as JSON lines")
    if options.one is not None:
        given = json.loads(options.one)
        rows = half(options, given["speculative"], given["second"])
        Path(given["out"]).write_text(json.dumps(rows))
        return
    results = {}
    for name, speculative in METHODS.items():
        results[name] = served(options, speculative)
        print(table(results), flush=True)


def arrivals() -> list[Arrival]:
    """The requests, by time."""
    with Path(__file__).with_suffix(".csv").open() as file:
        return [
            Arrival(float(r["seconds"]), r["service"], int(r["context"]), int(r["generated"]))
            for r in DictReader(file)
        ]


def served(options: Namespace, speculative: dict[str, Any] | None) -> list[list[float]]:
    """Both halves: for each request its arrival in the trace, its seconds and its tokens."""
    rows: list[list[float]] = []
    with TemporaryDirectory() as folder:
        if speculative and "state" in speculative:
            speculative = speculative | {"state": str(Path(folder) / speculative["state"])}
        for second in (False, True):
            one = {"speculative": speculative, "second": second}
            rows += vllm.apart(one, cores=options.cores)["rows"]
    return rows


def half(options: Namespace, speculative: dict[str, Any] | None, second: bool) -> dict[str, Any]:
    """Serve one half of the hour with an engine of its own."""
    import draftwise

    ours = speculative is not None and "drafters" in speculative
    config = draftwise.vllm_config(**speculative) if ours and speculative else speculative
    llm = vllm.engine(options.target, config, batch=16)
    vllm.write(llm, vllm.prompts(llm, ["Hello"], 8), 1, 8)
    begin, end = (HOUR / 2, HOUR) if second else (0.0, HOUR / 2)
    requests = list(prompts(llm, options, [a for a in arrivals() if begin <= a.seconds < end]))
    return {"rows": list(serve(llm, requests, begin, options.speed))}


def prompts(llm: Any, options: Namespace, coming: Sequence[Arrival]) -> Iterator[tuple[Arrival, list[int]]]:
    """Each request with its prompt, which ends with something to answer."""
    rng = Random(0)
    chats = [prompt.text for prompt in spec_bench()]
    code = [json.loads(line)["prompt"] for line in options.data.read_text().splitlines()]
    room = llm.llm_engine.vllm_config.model_config.max_model_len - 16
    for arrival in coming:
        texts, ids = chats if arrival.service == "chat" else code, list[int]()
        while len(ids) < min(arrival.context, room):
            ids = vllm.encode(llm, rng.choice(texts)) + ids
        yield arrival, ids[-min(arrival.context, room - arrival.generated) :]


def serve(
    llm: Any, requests: Sequence[tuple[Arrival, list[int]]], begin: float, speed: float
) -> Iterator[list[float]]:
    """Add each request at its time, and run the engine while it has any."""
    from vllm import SamplingParams

    engine, waiting, clock = llm.llm_engine, iter(enumerate(requests)), monotonic()
    one, left = next(waiting, None), len(requests)
    while left:
        now = monotonic() - clock
        while one is not None and (due := (one[1][0].seconds - begin) / speed) <= now:
            number, (arrival, ids) = one
            greedy = SamplingParams(temperature=0.0, max_tokens=arrival.generated)
            engine.add_request(str(number), {"prompt_token_ids": ids}, greedy)
            one = next(waiting, None)
        if not engine.has_unfinished_requests():
            sleep(max(0.0, due - now))
            continue
        for output in engine.step():
            if output.finished:
                arrival = requests[int(output.request_id)][0]
                took = monotonic() - clock - (arrival.seconds - begin) / speed
                left -= 1
                yield [arrival.seconds, took, len(output.outputs[0].token_ids)]


def table(results: dict[str, list[list[float]]]) -> str:
    """The tenths of the hour, one row a method, as Markdown."""
    lines = [heading("", *range(1, PARTS + 1), "all")]
    for name, rows in results.items():
        every = np.array(rows)
        part = np.minimum(every[:, 0] * PARTS // HOUR, PARTS - 1)
        lines.append(row(name, *(cell(every[part == k]) for k in range(PARTS)), cell(every)))
    return "\n".join(lines)


def cell(rows: Any) -> str:
    """Tokens, then seconds from arrival to the end: 50 and 99 %."""
    middle, late = np.percentile(rows[:, 1], [50, 99])
    return f"{rows[:, 2].sum():.0f}: {middle:.2f}, {late:.2f}"


if __name__ == "__main__":
    start(main)
