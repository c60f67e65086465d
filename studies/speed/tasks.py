"""MetaSD on two tasks in one text, the price of switching, and routers on what the target makes of a prompt.

    python -m studies.speed.tasks --data DATA --out TASKS
    draftwise trace --workload TASKS/asked.jsonl --drafters zoo:general,zoo:code,... --length 5 --out ASKED
    python -m studies.speed.tasks --data DATA --out TASKS --first ASKED
    draftwise trace --workload TASKS/second.jsonl --raw ... --out SECOND
    python -m studies.speed.tasks --data DATA --trace SECOND --first ASKED --costs c=0

The first writes prompts of test sets, `asked`, `reworded` and `long` (after pages of the next domain); the
third, second turns of another domain after the turns and answers of ASKED. The last prints each method's time
over that of UCB, by block divergence if the trace has overlaps; drafters may have a window.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import normalize

from draftwise.data import load_prompts
from draftwise.data.rewording import reword
from draftwise.generation.prompts import prompt_ids
from draftwise.measure.trace import Replay, Trace
from draftwise.measure.trace.state import ReplayState
from draftwise.models.load import load_model, load_tokenizer
from draftwise.writing import write_text
from studies.common.command import command, start
from studies.common.tables import Real, cell, heading, ratio, row
from studies.common.traces import costs_of
from studies.speed.world import World, made

PAGE = "docs/explanation/toys.md"
SETS = {"code": "code_python", "math": "gsm8k"}  # others are named after their specialist
SETS |= {name: name for name in ("qa", "sql", "summarization", "translation")}
LONG, LEAST = 1900, 16  # tokens of a long prompt, and of an answer that is a task
Text = Sequence[ReplayState]
PolicyOf = Callable[[ReplayState], str]
Lines = Iterator[tuple[str, dict[str, Any]]]


def asked(data: Path, name: str, part: str) -> list[str]:
    """Prompts of a domain, shuffled."""
    texts = [prompt.text for prompt in load_prompts(data / SETS[name] / f"{part}.jsonl")]
    Random(0).shuffle(texts)
    return texts


def workloads(data: Path, tokenizer: Any, limit: int) -> Lines:
    """Workloads and their lines; the category is the name of the specialist."""
    texts = {name: [text for text in asked(data, name, "test") if reword(text)] for name in SETS}
    for name, other in zip(SETS, [*SETS][1:] + [*SETS][:1], strict=True):
        pages = tokenizer("\n\n".join(texts[other])).input_ids
        for at, text in enumerate(texts[name][:limit]):
            n = LONG - len(tokenizer(text).input_ids)
            notes = tokenizer.decode(pages[at * n % (len(pages) - n) :][:n])
            words = reword(text)
            yield "asked", {"prompt": text, "category": name}
            yield "reworded", {"prompt": words[at % len(words)], "category": name}
            yield "long", {"prompt": f"{notes}\n\nNow something else.\n\n{text}", "category": name}


def second_turns(trace: Trace, tokenizer: Any) -> Lines:
    """Raw conversations; `question_id` is the number of the recording with the first turn."""
    answered = [(i, one) for i, one in enumerate(trace) if one.committed >= LEAST]
    turns = [(one.category, tokenizer.decode(one.prompt)) for _, one in answered]
    Random(0).shuffle(turns)
    for i, one in answered:
        category, turn = next(each for each in turns if each[0] != one.category)
        turns.remove((category, turn))
        turns.append((category, turn))
        answer = [token for token in one.text[: one.committed].tolist() if token not in trace.header.eos]
        before = tokenizer.decode([*one.prompt.tolist(), *answer])
        yield "second", {"prompt": f"{before}<|end|>{turn}", "category": category, "question_id": i}


def play(world: World, policy_of: PolicyOf, texts: Sequence[Text], orders: int) -> Real:
    """Seconds, those to catch up, switches, rounds and accepted tokens, shape (5, orders, texts).

    One learner plays all parts of a text, and what a drafter has read of one it need not read in the next.
    """
    price, sums = world.costs.of(world.model), np.zeros((5, orders, len(texts)))
    free = replace(world.costs, drafters={}, others=replace(price, catch_up=0.0))
    specialists = [name for name in world.models[1:] if "?" not in name]
    for order, (at, text) in product(range(orders), enumerate(texts)):
        loops, read, last = dict[str, Replay](), dict[str, int](), ""
        for state in text:
            name, length = policy_of(state), int(state.recording.prompt.size)
            if name not in loops:
                method = made(name, world.models if "drafter=" in name else specialists, 5)
                loops[name] = Replay(world.trace, method, free, seed=order * len(texts) + at)
            for round in loops[name].replay(state):
                who = round.arm.drafter
                late = price.catch_up * (length - read.get(who, 0))
                changes = last not in ("", who)
                sums[:, order, at] += round.seconds.total + late, late, changes, 1, round.accepted
                length += len(round.tokens)
                read[who], last = length, who
    return sums


def similar(data: Path, texts: Sequence[Text]) -> Iterator[tuple[str, list[str]]]:
    """Routers trained on 100 prompts of each domain, and their routes."""
    tokenizer, model = load_tokenizer("zoo:target"), load_model("zoo:target")

    def vectors(ids: Sequence[int]) -> list[Real]:
        with torch.inference_mode():
            layers = model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        return [
            one.double().numpy() for one in (layers[0][0].mean(0), layers[-1][0].mean(0), layers[-1][0, -1])
        ]

    labelled = [
        (name, prompt_ids(tokenizer, text)) for name in SETS for text in asked(data, name, "train")[:100]
    ]
    training = [vectors(ids) for _, ids in labelled]
    prompts = [vectors(text[0].recording.prompt.tolist()) for text in texts]
    for i, what in enumerate(("mean of embeddings", "mean of last states", "last state")):
        inputs, own = (normalize([each[i] for each in many]) for many in (training, prompts))
        for kind, router in (("nearest", NearestCentroid()), ("regression", LogisticRegression(C=100))):
            yield f"{kind}, {what}", list(router.fit(inputs, [name for name, _ in labelled]).predict(own))


def always(name: str) -> PolicyOf:
    """One policy."""
    return lambda _: name


def routed(of: dict[int, str]) -> PolicyOf:
    """The drafter of each recording, by its identity."""
    return lambda state: f"static-5?drafter=zoo:{of[id(state)]}"


def methods(world: World, texts: Sequence[Text], data: Path | None) -> Iterator[tuple[str, PolicyOf]]:
    """All methods by name, UCB first."""
    drafters = {name.removeprefix("zoo:"): name for name in world.models}
    more = "" if world.trace.header.overlap else "&reward=block-efficiency"
    names = [f"metasd-ucb?beta=0.01{more}", f"metasd-petc?constant=4{more}", "random"]
    if several := len(texts[0]) > 1:
        swucb, ducb = [f"swucb?window={n}&" for n in (100, 20)], [f"ducb?discount={x}&" for x in (0.98, 0.9)]
        names = [f"metasd-{other}beta=0.1&per_query=false{more}" for other in ("ucb?", *swucb, *ducb)]
    for name in (*names, *(f"static-5?drafter={drafter}" for drafter in drafters.values())):
        yield name, always(name)
    yield "own", lambda state: f"static-5?drafter={drafters[state.recording.category]}"
    if several or not data:
        return
    yield "router:zoo:router", lambda _: "router:zoo:router"
    for name, routes in similar(data, texts):
        of = {id(text[0]): route for text, route in zip(texts, routes, strict=True)}
        right = np.mean([of[id(text[0])] == text[0].recording.category for text in texts])
        yield f"{name}, {100 * right:.0f} % right", routed(of)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, help="DOMAIN/test.jsonl and train.jsonl; routers learn from it")
    parser.add_argument("--out", type=Path, help="the folder of the workloads")
    parser.add_argument("--limit", type=int, default=16, help="prompts of each domain")
    parser.add_argument("--first", type=Path, help="the trace of the first turns")
    parser.add_argument("--trace", type=Path, help="of a generalist and the specialists")
    parser.add_argument("--beside", type=Path, help="a trace of the same prompts with other models")
    parser.add_argument("--reference", help="the method that others are compared with; default: UCB")
    parser.add_argument("--costs", action="append", default=[], help="may be repeated")
    parser.add_argument("--orders", type=int, default=3, help="seeds of what draws")
    args = parser.parse_args()
    first = Trace(args.first) if args.first else None
    if args.out:
        tokenizer = load_tokenizer("zoo:target")
        args.out.mkdir(parents=True, exist_ok=True)
        files = defaultdict[str, str](str)
        lines = second_turns(first, tokenizer) if first else workloads(args.data, tokenizer, args.limit)
        for name, line in lines:
            files[name] += json.dumps(line) + "\n"
        for name, text in files.items():
            write_text(args.out / f"{name}.jsonl", text)
        return
    trace = Trace(args.trace)
    tables = [costs_of(args.trace, name) for name in args.costs]
    size = trace.drafters[0]  # that of all models
    costs = [replace(one, drafters={}, others=one.of(size)) for one in tables]
    worlds = [World(trace, each, "") for each in costs]
    texts: list[Text] = [(state,) for state in worlds[0].stages]
    if first:
        before = [ReplayState(recording) for recording in first]
        texts = [(before[int(text[0].recording.name)], *text) for text in texts]
    named = [(name, policy_of, worlds) for name, policy_of in methods(worlds[0], texts, args.data)]
    if args.beside:
        others = [World(Trace(args.beside), each, "") for each in costs]
        for who in others[0].models:
            named.append((who, always(f"static-5?drafter={who}"), others))
    named.sort(key=lambda one: one[0] != args.reference)
    print(heading("method", *args.costs, "accepted", "catching up", "switches"))
    reference: list[Real] = []
    for name, policy_of, where in named:
        parts = [(state,) for state in where[0].stages] if where is not worlds else texts
        runs = [play(world, policy_of, parts, args.orders if name == "random" else 1) for world in where]
        reference = reference or [run[0] for run in runs]
        cells = [cell(*ratio(one, run[0])) for one, run in zip(reference, runs, strict=True)]
        total = runs[-1].sum((1, 2))
        late = " ".join(f"{run[1].sum() / run[0].sum():.3f}" for run in runs)
        facts = f"{total[4] / total[3]:.2f}", late, f"{runs[-1][2].mean():.1f}"
        print(row(f"`{name}`", *cells, *facts), flush=True)


if __name__ == "__main__":
    start(main)
