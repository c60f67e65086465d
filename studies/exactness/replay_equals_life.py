"""Does a replay equal the live run? Compares every round of some policies, with equal seeds.

    python -m studies.exactness.replay_equals_life [--per-category 2] [--new-tokens 64] [--length 16]
        [--seed 0] [--policies A,B] [--drafters zoo:general,ngram,suffix] [--trace DIR] [--json FILE]

Records a trace of the bundled target on Spec-Bench (26 prompts by default; what DIR already holds is kept),
runs each policy live and on the trace, and compares arm, draft and accepted tokens of every round. At a first
difference it prints both rounds and the smallest margin between the two most likely tokens of a recorded
draft; a margin of some 1e-6 is a tie that passes of other widths may break either way. The exit status is 1
at any other difference. Then it times replays: rounds per second of processor time for each policy.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from time import process_time
from typing import Any

from rich.progress import track

from draftwise import Decoder, Sampling, method
from draftwise.build import complete
from draftwise.core.loop import Loop
from draftwise.core.roles import window_of
from draftwise.core.round import Round
from draftwise.measure.bench.run import policy_names
from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.record import Prompt, header_of, record
from draftwise.measure.trace.stage import Stage
from draftwise.measure.workloads import choose, load
from studies.common.command import command, listed, start

PAGE = "docs/how-to/replay.md"

POLICIES = "static-4,ucb1,metasd-ucb,tapout-seq-ucb1?length=16,hedgespec"
TIE = 1e-5  # of a probability, between the two most likely tokens
SPEED_ROUNDS = 5000


def main() -> int:
    options = parse()
    decoder = Decoder.from_pretrained("zoo:target", drafters=options.drafters, policy="none")
    sampling = Sampling(max_new_tokens=options.new_tokens, eos=decoder.eos)
    with tempfile.TemporaryDirectory() as temporary:
        trace = recorded(decoder, sampling, Path(options.trace or temporary), options)
        stages = [Stage(one) for one in trace]
        report = {
            name: compare(name, decoder, sampling, trace, stages, options.seed)
            for name in track(policy_names(options.policies), "policies")
        }
    print(f"{len(stages)} prompts, {sum(s.recording.committed for s in stages)} tokens")
    print("| policy | rounds | differing texts | of these ties | rounds/s |\n|---|---|---|---|---|")
    for name, row in report.items():
        print(f"| `{name}` | {row['rounds']} | {row['differing']} | {row['ties']} | {row['per_s']:,.0f} |")
        for line in row["first"]:
            print("   ", line, file=sys.stderr)
    if options.json:
        Path(options.json).write_text(json.dumps({"settings": vars(options), "results": report}, indent=1))
    return int(any(row["differing"] > row["ties"] for row in report.values()))


def parse() -> Namespace:
    parser = command(__doc__, PAGE)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--drafters", type=listed, default="zoo:general,zoo:code,ngram,suffix")
    parser.add_argument("--trace", default="")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def recorded(decoder: Decoder, sampling: Sampling, folder: Path, options: Namespace) -> Trace:
    """The trace of the prompts that fit; records what is missing."""
    questions = choose(load("spec-bench"), per_category=options.per_category)
    prompts = [Prompt(str(q.question_id), q.category, decoder.encode(q.text)) for q in questions]
    window = window_of(decoder.loop.target)
    prompts = [prompt for prompt in prompts if len(prompt.tokens) + options.new_tokens <= window]
    target, team = decoder.loop.target, decoder.loop.pool.drafters
    about: dict[str, Any] = {"name": "zoo:target", "workload": "spec-bench", "prompts": prompts}
    header = header_of(target, team, sampling, length=options.length, overlap=True, **about)
    record(target, team, prompts, folder, header, sampling)
    return Trace(folder)


def compare(
    name: str, decoder: Decoder, sampling: Sampling, trace: Trace, stages: list[Stage], seed: int
) -> dict[str, Any]:
    """Live against replayed, text by text."""
    made, costs = method(name, trace.drafters), Costs(passes=(1.0,))
    team = complete(dict(decoder.loop.pool.drafters), made)
    live = Loop(decoder.loop.target, team, made.policy, made.recorder, seed=seed)
    back = Replay(trace, method(name, trace.drafters), costs, seed=seed)
    row: dict[str, Any] = {"rounds": 0, "differing": 0, "ties": 0, "first": []}
    for number, stage in enumerate(stages):
        there = list(live.run([stage.recording.prompt.tolist()], sampling))
        here = list(back.play(stage))
        row["rounds"] += len(there)
        pairs = zip(there, here, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if known(a) != known(b)), None)
        if at is None and len(there) == len(here):
            continue
        row["differing"] += 1
        at = min(len(there), len(here)) - 1 if at is None else at
        margin = least_margin(stage, here, at)
        row["ties"] += margin < TIE
        row["first"].append(
            f"{name}, prompt {number}, round {at}: live {known(there[at])}, replayed {known(here[at])}, "
            f"margin {margin:.1e}"
        )
    return row | {"per_s": speed(name, trace, stages, costs)}


def known(round: Round) -> tuple[Any, ...]:
    return round.arm.name, round.drafted, round.accepted, round.tokens, round.done


def least_margin(stage: Stage, rounds: list[Round], at: int) -> float:
    """The smallest margin between the two most likely tokens in the recorded draft of a round."""
    round, place = rounds[at], sum(len(r.tokens) for r in rounds[:at])
    lines = stage.lines.get(round.arm.drafter)
    room = stage.recording.budget - place - 1
    if lines is None or not room:
        return 1.0
    first, n = lines.span(place, min(round.arm.length, room))
    top = lines.answers.signals[first : first + n, :2]
    return float((top[:, 0] - top[:, 1]).min()) if n else 1.0


def speed(name: str, trace: Trace, stages: list[Stage], costs: Costs) -> float:
    loop = Replay(trace, method(name, trace.drafters), costs)
    rounds, start = 0, process_time()
    while rounds < SPEED_ROUNDS:
        rounds += sum(1 for stage in stages for _ in loop.play(stage))
    return rounds / (process_time() - start)


if __name__ == "__main__":
    start(main)
