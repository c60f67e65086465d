"""The decisions of every policy on one trace, one hash per policy: compares two versions of the code.

    python -m studies.exactness.decisions --json now.json                        hashes of this tree
    python -m studies.exactness.decisions --tree ../before --against now.json    another tree, compared

A hash covers, for every round, the request, the arm, its stop rule, the drafted, accepted and committed
tokens, the feedback, and at the end the state that the policy would save. Costs and seeds are fixed, so that
equal code gives equal hashes on one machine. The traces are those of `sims`: one greedy, one with sampling;
the scripts of `tests.policies.auto.script` add batches with simulated seconds. The exit status is 1 if a hash
differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

PAGE = "CONTRIBUTING.md"
POLICIES = (
    *("none", "static-3", "static?length=8&drafter=suffix", "static?length=7&drafter=bad&stop=svip(0.9)"),
    *("max-confidence?length=8", "svip?length=8", "svip-difference?length=8", "adaedl?length=8"),
    *("logit-margin?length=8", "hf-heuristic?start=4&longest=8", "hf-threshold?length=8"),
    *("ucb1", "ucb1?arms=drafters*lengths*stops&lengths=2,6&reward=blended", "random"),
    *("random?arms=drafters*lengths&lengths=0,1,2,5", "tapout-seq-ucb1?length=8"),
    *("tapout-seq-ucbtuned?length=8", "tapout-seq-ts?length=8", "tapout-token-ucb1?length=8"),
    *("tapout-token-ts?length=8", "metasd-ucb", "metasd-exp3", "metasd-exp3?per_query=false"),
    *("metasd-sh", "metasd-petc", "metasd-ducb", "metasd-ducb?per_query=false", "metasd-swucb"),
    *("ucbspec?strength=0.1", "ucbspec?per_query=false", "exp3spec", "exp3spec?per_query=false"),
    *("linucb", "linucb?arms=drafters*stops&length=8&reward=blended", "draft-all"),
    *("hedgespec", "hedgespec?per_query=false", "hedgespec?windows=all&thin=2"),
    *("hedgespec?windows=rounds&censored=weight", "hedgespec-hedge?arms=drafters*lengths&every=4"),
    *("auto?length=8", "auto?length=3&share=0.2", "auto?length=8&share=0"),
)
PARTS = (
    *("costs", "price", "length", "others", "stop", "forgetting", "text", "guard", "none", "thinning"),
    *("hints", "reading"),
)
BATCHES = (1, 4, 8, 32)


def module(*names: str) -> Any:
    """The first of these modules that there is: trees differ in where they keep things."""
    for name in names:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise SystemExit(f"none of {', '.join(names)} is in this tree: give --tree a checkout of Draftwise")


def ablated(part: str, drafters: list[str], length: int) -> Any:
    """`auto` without one of its parts."""
    try:
        without = import_module("studies.speed.without")
    except ModuleNotFoundError:
        return module("draftwise.policies.catalogue", "draftwise.catalogue").method(
            f"auto?length={length}&without={part}", drafters
        )
    return without.without(part, drafters, length=length)


def hashed(made: Any, rounds: Iterator[Any], learnt: list[str]) -> dict[str, Any]:
    """The number of rounds and the hash of all decisions and of the learned state."""
    dump = module("draftwise.state.numbers", "draftwise.state").dump
    digest, n = sha256(), 0
    for n, r in enumerate(rounds, 1):  # noqa: B007  (the count is what is returned)
        stops = [(s.rule, s.threshold) for s in r.decision.stops]
        facts = (r.request, r.arm.name, stops, r.decision.propensity, r.drafted, r.accepted, r.tokens, r.done)
        digest.update(repr(facts).encode())
    digest.update("".join(learnt).encode())
    digest.update(json.dumps(dump(made.policy), sort_keys=True).encode())
    return {"rounds": n, "hash": digest.hexdigest()[:16]}


def overheard(made: Any) -> list[str]:
    """All feedback that this policy will get, in order."""
    heard: list[str] = []
    policy, learn = made.policy, type(made.policy).learn

    class Heard(type(policy)):  # type: ignore[misc]  # fields may be slots, so the method is put in a subclass
        __slots__ = ()

        def learn(self, feedback: Any) -> None:
            for o in feedback.outcomes:
                heard.append(f"{o.accepted} {o.drafted} {o.seconds} {o.reward} {o.overlaps} {cost_text(o)}\n")
            heard.append(f"{feedback.request} {feedback.losses} {feedback.windows}\n")
            learn(self, feedback)

    policy.__class__ = Heard
    return heard


def cost_text(outcome: Any) -> str:
    """Return an outcome's cost in the words of the first version, whatever this tree calls it."""
    cost = outcome.cost if hasattr(outcome, "cost") else outcome.spent
    if cost is None:
        return "None"
    numbers = {field.name: getattr(cost, field.name) for field in fields(cost)}
    earlier = {"kind": "compiled", "drafter_kind": "drafter_compiled"}  # words that were truth values
    numbers = {
        earlier.get(name, name): value == "compiled" if name in earlier else value
        for name, value in numbers.items()
    }
    return "Spent(" + ", ".join(f"{name}={value!r}" for name, value in numbers.items()) + ")"


def replaying() -> tuple[Any, Callable[[Any, Any], Iterator[Any]]]:
    """Classes and functions of the replay; other trees have other names."""
    names = ("draftwise.measure.trace.state", "draftwise.measure.trace.stage", "draftwise.trace.stage")
    found = module(*names)
    if hasattr(found, "ReplayState"):
        return found.ReplayState, lambda loop, state: loop.replay(state)
    return found.Stage, lambda loop, state: loop.play(state)


def replays(sims: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every policy on the two traces."""
    method = module("draftwise.policies.catalogue", "draftwise.catalogue").method
    replay = module("draftwise.measure.trace.replay", "draftwise.trace.replay").Replay
    state, play = replaying()
    makers: Mapping[str, Callable[[list[str]], Any]] = {
        name: lambda drafters, name=name: method(name, drafters) for name in POLICIES
    } | {f"auto without {p}": lambda drafters, p=p: ablated(p, drafters, 8) for p in PARTS}
    for kind, temperature in (("greedy", 0.0), ("drawn", 0.8)):
        with TemporaryDirectory() as folder:
            trace = sims.recorded(Path(folder), n=24, sampling=sims.settings(120, temperature=temperature))
            for name, make in makers.items():
                made = make(list(trace.drafters))
                learnt = overheard(made)
                try:
                    loop = replay(trace, made, sims.COSTS, seed=3)
                    rounds = (r for one in trace for r in play(loop, state(one)))
                    yield f"{kind}: {name}", hashed(made, rounds, learnt)
                except module("draftwise.errors").UserError as error:
                    yield f"{kind}: {name}", {"rounds": 0, "hash": f"refused: {error}"[:60]}


def worlds(script: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """`auto` in batches, with simulated seconds."""
    method = module("draftwise.policies.catalogue", "draftwise.catalogue").method
    dear = script.Prices(target=lambda tokens: 10e-3 * max(1.0, tokens / 2))
    right = {
        "good": script.always(0.75),
        "weak": script.always(0.3),
        "bursts": lambda text, at, rng: float(at // 20 % 2),
    }
    with pytest.MonkeyPatch.context() as patch:
        for batch, prices in [*((batch, script.Prices()) for batch in BATCHES), (2, dear)]:
            for part in ("", *PARTS):
                widths = {"weak": 2} if batch == 8 else {}
                world = script.Stage(patch, right, prices, texts=24, widths=widths)
                names = list(right)
                made = ablated(part, names, 16) if part else method("auto", names)
                learnt = overheard(made)
                rounds = world.run(made, batch=batch)[2]
                label = f"auto without {part}" if part else "auto"
                yield f"batch {batch}: {label}", hashed(made, iter(rounds), learnt)


def sampled(world: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """`auto` at temperature 1, with two models and two lookups, on text that changes its distribution."""
    text = world.phases([world.EASY, world.HARD], 40)
    models = {"good": world.mixed(world.EASY, world.table(2, 0.3), 0.9), "bad": world.table(3, 1.0)}
    with pytest.MonkeyPatch.context() as patch:
        for batch in BATCHES[:3]:
            played = world.World(patch, text, world.Prices(), models, ["ngram", "suffix"])
            _, loop, rounds = played.run("auto", texts=8, batch=batch)
            yield f"temperature 1, batch {batch}: auto", hashed(loop, iter(rounds), [])


def merged(sims: Any, adding: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The merged state of two policies that played on two halves of a trace, and of small learners."""
    method = module("draftwise.policies.catalogue", "draftwise.catalogue").method
    replay = module("draftwise.measure.trace.replay", "draftwise.trace.replay").Replay
    state, play = replaying()
    with TemporaryDirectory() as folder:
        trace = sims.recorded(Path(folder), n=12, sampling=sims.settings(120))
        texts = list(trace)
        for name in POLICIES:
            halves = [method(name, list(trace.drafters)) for _ in range(2)]
            for k, made in enumerate(halves):
                loop = replay(trace, made, sims.COSTS, seed=k)
                for one in texts[k::2]:
                    list(play(loop, state(one)))
            fresh = method(name, list(trace.drafters)).policy
            yield f"merged: {name}", combined(fresh, [made.policy for made in halves])
    for new, step in adding:
        parts = [new(), new(), new()]
        for k, part in enumerate(parts):
            rng = Random(k)
            for _ in range(7 + 20 * k):
                step(part, rng)
        yield f"merged: {type(parts[0]).__name__}", combined(new(), parts)


def combined(into: Any, parts: list[Any]) -> dict[str, Any]:
    """The hash of their merged state, or a note that they cannot be merged."""
    dump = module("draftwise.state.numbers", "draftwise.state").dump
    merge = module("draftwise.state.merge", "draftwise.merge")
    for one in (into, *parts):
        dump(one)
    try:
        merge.combine(into, parts)
    except module("draftwise.errors").UserError:
        return {"rounds": 0, "hash": "refused"}
    text = json.dumps(dump(into), sort_keys=True)
    return {"rounds": len(parts), "hash": sha256(text.encode()).hexdigest()[:16]}


def hashes() -> dict[str, Any]:
    """All hashes of the tree that is imported."""
    sims = module("tests.measure.trace.sims", "tests.trace.sims")
    script = module("tests.policies.auto.script", "tests.auto.script")
    world = module("tests.policies.auto.world", "tests.auto.world")
    adding = module("tests.state.test_merge", "tests.test_merge").ADDING
    parts = (replays(sims), worlds(script), sampled(world), merged(sims, adding))
    return {name: found for part in parts for name, found in part}


def main() -> int:
    """Print the hashes, or what differs."""
    # Not the parser of studies.common: this file runs in other trees too, which may have none.
    about = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(description=about, epilog=f"Figures: {PAGE}")
    parser.add_argument("--tree", type=Path, help="another checkout, whose code is run")
    parser.add_argument("--json", type=Path, help="write the hashes here")
    parser.add_argument("--against", type=Path, help="compare with hashes written before")
    args = parser.parse_args()
    if args.tree:
        tree, rest = args.tree.resolve(), []
        for name in ("json", "against"):
            if value := getattr(args, name):
                rest += [f"--{name}", str(value.resolve())]
        path = f"{tree / 'src'}:{tree}"
        command = [sys.executable, str(Path(__file__).resolve()), *rest]
        return subprocess.run(command, cwd=tree, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}).returncode
    found = hashes()
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    known = json.loads(args.against.read_text(encoding="utf-8")) if args.against else {}
    wrong = 0
    for name, mine in found.items():
        before = known.get(name)
        refused = before is not None and mine["hash"][:7] == before["hash"][:7] == "refused"
        same = "" if before is None else "equal" if before == mine or refused else f"NOT EQUAL {before}"
        wrong += same.startswith("NOT")
        print(f"{name:60} {mine['rounds']:6} {mine['hash']:18} {same}")
    if known:
        print(
            f"{len(found) - wrong} of {len(found)} equal; rounds: {sum(x['rounds'] for x in found.values())}"
        )
    return int(wrong > 0 or bool(known.keys() - found.keys()))


if __name__ == "__main__":
    sys.exit(main())
