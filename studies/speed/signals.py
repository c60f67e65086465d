"""Recorded with a trace: ten probabilities and the state of a head's every token, and its trees as chains.

    python -m studies.speed.signals --workload mbpp:DATA --drafters eagle:zoo:smollm2-eagle3 --out TRACE
    python -m studies.speed.signals --train TRACE --test TRACE --costs COSTS --costs COSTS

The first writes a greedy trace of `zoo:smollm2`, and beside each text what the classifiers of DISCO and
SpecDec++ read of the first drafter's tokens. A head with `width` drafts EAGLE-2's trees: a trace has of them
the accepted path, and wrong tokens up to a depth of five, so that a table prices each as a chain, and must
have in `first` what the other nodes add to a pass.

The second trains both classifiers on one trace, or with `--test` alone on the halves of that one, each for
the other, and replays the test prompts. Thresholds are tuned on one half of them for the other, and where
it says so on the training trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier

from draftwise import Decoder, Sampling
from draftwise.core.arms import NEVER, Stop
from draftwise.core.drafts import Draft, Job, Signals
from draftwise.core.stops import TOP
from draftwise.measure.trace import Costs, Trace
from draftwise.measure.trace.drafts import READ_ALL
from draftwise.measure.trace.files import file_of, header_json, save
from draftwise.measure.trace.record import Prompt, Recorder, header_of
from draftwise.measure.trace.state import ReplayState
from draftwise.measure.workloads import choose, load
from draftwise.train.classifier import Head, weighted
from draftwise.writing import write_json
from studies.common.command import command, listed, start
from studies.common.tables import Real, cell, heading, middle, ratio, row
from studies.common.traces import costs_of
from studies.speed.findings import static_yes, tuned_length, tuned_rule
from studies.speed.world import Classified, World, tuned

PAGE = "docs/explanation/findings.md"


# -- recording ---------------------------------------------------------------------------------------------


class Never:
    """A classifier that stops no draft, so that its inputs are read."""

    def score(self, now: Signals) -> float:
        """Certainty."""
        return 1.0


DEPTH = 5  # of trees
EVERY = (*READ_ALL, Stop("disco", -1.0, Never()), Stop("specdecpp", 2.0, Never()), NEVER)


class Watched:
    """A head whose drafts are noted, shape (tokens, ten probabilities and its state)."""

    def __init__(self, drafter: Any) -> None:
        self.rows, self.inner = list[Real](), drafter.draft
        drafter.draft = self.draft

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft as it would, with all signals."""
        if jobs[0].deterministic:  # not of the recording itself
            return list(self.inner(jobs))
        drafts: list[Draft] = self.inner([replace(job, stops=EVERY) for job in jobs])
        self.rows += [np.array([*s.top, *s.hidden], np.float32) for draft in drafts for s in draft.signals]
        return drafts


class Flat:
    """A head whose trees are chains: the accepted path, then wrong tokens."""

    def __init__(self, drafter: Any) -> None:
        self.text, self.inner = list[int](), drafter.draft
        drafter.draft = self.draft

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft trees, of which the text is known since the head has read it all."""
        self.text = max(self.text, *(job.request.tokens for job in jobs), key=len)
        jobs = [replace(job, length=min(job.length, DEPTH), stops=(NEVER,)) for job in jobs]
        trees = self.inner(jobs)
        return [self._chain(job, tree) for job, tree in zip(jobs, trees, strict=True)]

    def _chain(self, job: Job, tree: Draft) -> Draft:
        if not tree.tokens:
            return tree
        at, node, path = len(job.request.tokens), -1, list[int]()
        children = {pair: i for i, pair in enumerate(zip(tree.parents, tree.tokens, strict=True))}
        for token in self.text[at : at + job.length]:
            if (node := children.get((node, token), -2)) < 0:
                break
            path.append(token)
        rest = self.text[at + len(path) : at + job.length] + [0] * job.length
        path += [int(token == 0) for token in rest[: job.length - len(path)]]  # none is the text's
        return Draft.chain(path, signals=[Signals(0.0, 0.0, 0.0, 0.0)] * len(path))


def record(args: Any) -> None:
    """Write a trace, and its signals beside it."""
    decoder = Decoder.from_pretrained(
        "zoo:smollm2", drafters=args.drafters, dtype="float32", policy="none", compile="off"
    )
    target, team = decoder.loop.target, decoder.loop.pool.drafters
    questions = choose(load(args.workload), per_category=args.per_category)
    prompts = [Prompt(str(q.question_id), q.category, decoder.encode(q.text)) for q in questions]
    sampling = Sampling(max_new_tokens=args.tokens, temperature=0.0, eos=decoder.eos)
    header = header_of(
        target, team, sampling, name="zoo:smollm2", workload=args.workload, prompts=prompts,
        length=args.length, overlap=False,
    )  # fmt: skip
    watched = Watched(team[args.drafters[0]])
    flat = [Flat(drafter) for drafter in team.values() if getattr(drafter, "branches", 1) > 1]
    recorder = Recorder(target, team, header)
    args.out.mkdir()
    write_json(args.out / "trace.json", header_json(header))
    for i, prompt in enumerate(prompts):
        watched.rows = []
        for one in flat:
            one.text = []
        save(recorder.record(prompt, i), file_of(args.out, i), header)
        np.save(args.out / f"{i:06d}.npy", np.array(watched.rows, np.float16))
        print(f"{i + 1}/{len(prompts)}", flush=True)


# -- comparing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A classifier: inputs of one draft's tokens, and what fits them to labels: both shapes (tokens, ...).

    A draft ends with the first token whose number, made of the chances so far, is below the threshold.
    """

    name: str
    lags: bool
    fit: Callable[[Real, Real], Callable[[Real], Real]]
    thresholds: Sequence[float]


def disco(inputs: Real, labels: Real) -> Callable[[Real], Real]:
    """Two layers on ten probabilities, their entropy and the place."""
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-9
    network = MLPClassifier((32,), early_stopping=True, max_iter=500, random_state=0)
    network.fit((inputs - mean) / spread, labels)
    return lambda rows: np.asarray(network.predict_proba((rows - mean) / spread)[:, 1])


def specdecpp(inputs: Real, labels: Real) -> Callable[[Real], Real]:
    """Three passes of one residual block on the head's state; a rejection weighs six times as much."""
    torch.manual_seed(0)
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-9  # of a head they are large
    head, x = Head(inputs.shape[1], 3, shared=True), as_tensor((inputs - mean) / spread)
    y = as_tensor(labels)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-4, weight_decay=0.1)
    steps = 3 * (len(x) // 32 + 1)  # three epochs of its batches
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        some = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        torch.autograd.backward(weighted(head(x[some]), y[some], 6.0))
        optimizer.step()
        schedule.step()
    return lambda rows: head(as_tensor((rows - mean) / spread)).sigmoid().detach().double().numpy()


def as_tensor(values: Real) -> torch.Tensor:
    """In float32."""
    return torch.from_numpy(np.asarray(values, np.float32))


OWN = "own halves"
CHANCES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
KINDS = (
    Kind("DISCO", False, disco, CHANCES),
    Kind("SpecDec++", True, specdecpp, (0.0, *(0.1**k for k in (4, 3, 2.5, 2, 1.5)), *CHANCES[2:])),
)


class Drafts(Classified):
    """All drafts of a trace, with what a classifier reads; `chances` are set by `judge`."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.stages = trace, [ReplayState(one) for one in trace]
        self.model = trace.drafters[0]
        self.drafts = [self._read(stage) for stage in self.stages]
        self.rows = [np.load(trace.folder / f"{i:06d}.npy").astype(float) for i in range(len(trace))]

    def inputs(self, i: int, *, states: bool) -> Real:
        """Of prompt `i`, shape (places, length, inputs)."""
        drafts, (features, *_) = self.stages[i].drafters[self.model].drafts, self.drafts[i]
        n = features.shape[1]
        where = np.minimum(drafts.start[:, -1, None] + np.arange(n), len(self.rows[i]) - 1)
        if states:
            return np.asarray(self.rows[i][where, TOP:])
        top = self.rows[i][where, :TOP]
        entropy = -(top * np.log(np.maximum(top, 1e-12))).sum(-1, keepdims=True)
        place = features[..., -2:].sum(-1, keepdims=True)
        return np.concatenate([top, entropy, place], -1)

    def examples(self, i: int, kind: Kind) -> tuple[Real, Real]:
        """Inputs and labels of the tokens that a round of the longest draft would have seen."""
        inputs, (_, right, known) = self.inputs(i, states=kind.lags), self.drafts[i]
        if kind.lags:  # the state after a token says whether it is right
            counts = self.stages[i].drafters[self.model].drafts.count[:, -1, None]
            after = np.logical_and(known[:, :-1], np.arange(1, known.shape[1]) < counts)
            return inputs[:, 1:][after], right[:, :-1][after].astype(float)
        return inputs[known], right[known].astype(float)

    def learn(self, kind: Kind, which: Sequence[int]) -> Callable[[Real], Real]:
        """Fit a classifier to the drafts of these prompts."""
        inputs, labels = zip(*(self.examples(i, kind) for i in which), strict=True)
        return kind.fit(np.concatenate(inputs), np.concatenate(labels))

    def judge(self, kind: Kind, classifier: Callable[[int], Callable[[Real], Real]]) -> Drafts:
        """Return them with the chances that the classifier of each prompt gives."""
        judged, judged.chances = copy(self), []
        for i in range(len(self.stages)):
            rows = self.inputs(i, states=kind.lags)
            chances = classifier(i)(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:2])
            if kind.lags:
                chances[:, 0] = 1.0
                chances = chances.cumprod(1)
            judged.chances.append(chances)
        return judged


def ways(kind: Kind, test: Drafts, train: Drafts | None) -> Iterator[tuple[str, Drafts, Drafts]]:
    """Every way to train and to tune: its name, test prompts, and those that thresholds are tuned on."""
    halves = [test.learn(kind, range(1 - half, len(test.stages), 2)) for half in (0, 1)]
    own = test.judge(kind, lambda i: halves[i % 2])
    yield OWN, own, own
    if train:
        classifier = train.learn(kind, range(len(train.stages)))
        there, here = (drafts.judge(kind, lambda i: classifier) for drafts in (train, test))
        yield "trained elsewhere", here, here
        yield "trained and tuned elsewhere", here, there


def seconds(kind: Kind, test: Drafts, tune: Drafts, costs: Costs) -> Real:
    """Of each test prompt, with a tuned threshold."""
    tried = {f"{x:g}": test.seconds(costs, x) for x in kind.thresholds}
    if tune is test:
        return tuned(tried)[1]
    return tried[min(tried, key=lambda x: float(tune.seconds(costs, float(x)).sum()))]


def baselines(world: World, longest: int) -> dict[str, Real]:
    """Seconds of each test prompt by what needs no classifier."""
    return {
        "tuned length": tuned_length("model", world).seconds,
        "tuned confidence": tuned_rule("max-confidence?threshold", CHANCES[2:], longest, world).seconds,
        "UCB1": world.run(f"tapout-seq-ucb1?length={longest}", [world.model]).seconds,
    }


def f1(kind: Kind, test: Drafts, tune: Drafts) -> str:
    """F1 of a classifier at its own best threshold where it is tuned, above that of always yes."""
    best = max(CHANCES, key=lambda x: tune.scores(partial(tune.says, x))[0])
    value, draws = test.scores(partial(test.says, best))
    always, others = test.scores(partial(test.says, -1.0))
    above = cell(value - always, *middle(draws - others))
    return f"{cell(value, *middle(draws))} above {best:g}, more than always yes by {above}"


def compare(args: Any) -> None:
    """Print ratios of times, above 1 if the classifier is faster, and F1."""
    test = Drafts(Trace(args.test, args.drafters))
    train = Drafts(Trace(args.train, args.drafters)) if args.train else None
    longest = test.trace.header.length
    worlds = [World(test.trace, costs_of(args.test, name), name, args.orders) for name in args.costs]
    others = [baselines(world, longest) for world in worlds]
    judged = [(kind, *way) for kind in KINDS for way in ways(kind, test, train)]
    print(heading("classifier", "", "costs", *others[0]))
    times = dict[tuple[str, str, str], Real]()
    for kind, name, here, there in judged:
        for world, against in zip(worlds, others, strict=True):
            mine = times[kind.name, name, world.label] = seconds(kind, here, there, world.costs)
            cells = [cell(*ratio(mine, its)) for its in against.values()]
            print(row(kind.name, name, world.label, *cells), flush=True)
            if kind.lags and here is there:  # as its code has it, untuned: 1 - 0.7
                cells = [cell(*ratio(here.seconds(world.costs, 0.3), its)) for its in against.values()]
                print(row(kind.name, f"{name}, threshold 0.7", world.label, *cells), flush=True)
    for (who, name, label), mine in times.items():
        if name != OWN:
            print(f"- {who}, {name}, against {OWN}, {label}: {cell(*ratio(mine, times[who, OWN, label]))}")
    for kind, name, here, there in judged:
        if not kind.lags:
            print(f"- F1 of {kind.name}, {name}: {f1(kind, here, there)}")
    sizes = [each[1].shape for each in test.drafts]
    for n in range(1, longest + 1):
        value, draws = test.scores(partial(static_yes, sizes, n))
        print(f"- F1 of {n} tokens: {cell(value, *middle(draws))}")


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--workload", default="", help="record it, as `draftwise trace` names it")
    parser.add_argument("--drafters", type=listed, default=["eagle:zoo:smollm2-eagle3"])
    parser.add_argument("--per-category", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--costs", action="append", default=[])
    parser.add_argument("--orders", type=int, default=3)
    args = parser.parse_args()
    if args.workload and args.out:
        record(args)
    elif args.test and args.costs:
        compare(args)
    else:
        parser.error("give --workload and --out, or --test and --costs")


if __name__ == "__main__":
    start(main)
