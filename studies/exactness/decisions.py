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

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from draftwise.errors import UserError
from draftwise.measure.trace import Replay, ReplayState
from draftwise.policies.catalogue import method
from draftwise.state.learned import combine, dump
from studies.common.command import command, start
from studies.speed.without import PARTS, without
from tests.measure.trace import sims
from tests.policies.auto import drawn, script
from tests.state.test_merge import ADDING

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
BATCHES = (1, 4, 8, 32)


def hashed(chosen_method: Any, rounds: Iterator[Any], feedback: list[str]) -> dict[str, Any]:
    """The number of rounds and the hash of all decisions and of the learned state."""
    digest, n = sha256(), 0
    for n, r in enumerate(rounds, 1):  # noqa: B007  (the count is what is returned)
        stops = [(s.rule, s.threshold) for s in r.decision.stops]
        facts = (r.request, r.arm.name, stops, r.decision.propensity, r.drafted, r.accepted, r.tokens, r.done)
        digest.update(repr(facts).encode())
    digest.update("".join(feedback).encode())
    digest.update(json.dumps(dump(chosen_method.policy), sort_keys=True).encode())
    return {"rounds": n, "hash": digest.hexdigest()[:16]}


def overheard(chosen_method: Any) -> list[str]:
    """All feedback that this policy will get, in order."""
    feedback_lines: list[str] = []
    policy, learn = chosen_method.policy, type(chosen_method.policy).learn

    class Heard(type(policy)):  # type: ignore[misc]  # fields may be slots, so the method is put in a subclass
        __slots__ = ()

        def learn(self, feedback: Any) -> None:
            for o in feedback.outcomes:
                feedback_lines.append(
                    f"{o.accepted} {o.drafted} {o.seconds} {o.reward} {o.overlaps} {o.cost}\n"
                )
            feedback_lines.append(f"{feedback.request} {feedback.losses} {feedback.windows}\n")
            learn(self, feedback)

    policy.__class__ = Heard
    return feedback_lines


def replays() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every policy on the two traces."""
    makers: Mapping[str, Callable[[list[str]], Any]] = {
        name: lambda drafters, name=name: method(name, drafters) for name in POLICIES
    } | {f"auto without {p}": lambda drafters, p=p: without(p, drafters, length=8) for p in PARTS}
    for kind, temperature in (("greedy", 0.0), ("drawn", 0.8)):
        with TemporaryDirectory() as folder:
            trace = sims.recorded(Path(folder), n=24, sampling=sims.settings(120, temperature=temperature))
            for name, make in makers.items():
                chosen_method = make(list(trace.drafters))
                feedback = overheard(chosen_method)
                try:
                    loop = Replay(trace, chosen_method, sims.COSTS, seed=3)
                    rounds = (r for one in trace for r in loop.replay(ReplayState(one)))
                    yield f"{kind}: {name}", hashed(chosen_method, rounds, feedback)
                except UserError as error:
                    yield f"{kind}: {name}", {"rounds": 0, "hash": f"refused: {error}"[:60]}


def worlds() -> Iterator[tuple[str, dict[str, Any]]]:
    """`auto` in batches, with simulated seconds."""
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
                stage = script.Stage(patch, right, prices, texts=24, widths=widths)
                names = list(right)
                chosen_method = without(part, names, length=16) if part else method("auto", names)
                feedback = overheard(chosen_method)
                rounds = stage.run(chosen_method, batch=batch)[2]
                label = f"auto without {part}" if part else "auto"
                yield f"batch {batch}: {label}", hashed(chosen_method, iter(rounds), feedback)


def sampled() -> Iterator[tuple[str, dict[str, Any]]]:
    """`auto` at temperature 1, with two models and two lookups."""
    right = {"good": script.always(0.75), "bad": script.always(0.02)}
    with pytest.MonkeyPatch.context() as patch:
        for batch in BATCHES[:3]:
            stage = drawn.Stage(patch, right, lookups=["ngram", "suffix"], texts=8)
            _, loop, rounds = stage.run("auto", batch=batch)
            yield f"temperature 1, batch {batch}: auto", hashed(loop, iter(rounds), [])


def merged() -> Iterator[tuple[str, dict[str, Any]]]:
    """The merged state of two policies that played on two halves of a trace, and of small learners."""
    with TemporaryDirectory() as folder:
        trace = sims.recorded(Path(folder), n=12, sampling=sims.settings(120))
        texts = list(trace)
        for name in POLICIES:
            halves = [method(name, list(trace.drafters)) for _ in range(2)]
            for k, made in enumerate(halves):
                loop = Replay(trace, made, sims.COSTS, seed=k)
                for one in texts[k::2]:
                    list(loop.replay(ReplayState(one)))
            fresh = method(name, list(trace.drafters)).policy
            yield f"merged: {name}", combined(fresh, [made.policy for made in halves])
    for new, step in ADDING:
        parts = [new(), new(), new()]
        for k, part in enumerate(parts):
            rng = Random(k)
            for _ in range(7 + 20 * k):
                step(part, rng)
        yield f"merged: {type(parts[0]).__name__}", combined(new(), parts)


def combined(into: Any, parts: list[Any]) -> dict[str, Any]:
    """The hash of their merged state, or a note that they cannot be merged."""
    for one in (into, *parts):
        dump(one)
    try:
        combine(into, parts)
    except UserError:
        return {"rounds": 0, "hash": "refused"}
    text = json.dumps(dump(into), sort_keys=True)
    return {"rounds": len(parts), "hash": sha256(text.encode()).hexdigest()[:16]}


def hashes() -> dict[str, Any]:
    """All hashes of the tree that is imported."""
    parts = (replays(), worlds(), sampled(), merged())
    return {name: row for part in parts for name, row in part}


def main() -> int:
    parser = command(__doc__, PAGE)
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
        study = [sys.executable, str(Path(__file__).resolve()), *rest]
        return subprocess.run(study, cwd=tree, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}).returncode
    results = hashes()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    earlier = json.loads(args.against.read_text(encoding="utf-8")) if args.against else {}
    wrong = 0
    for name, mine in results.items():
        before = earlier.get(name)
        refused = before is not None and mine["hash"][:7] == before["hash"][:7] == "refused"
        same = "" if before is None else "equal" if before == mine or refused else f"NOT EQUAL {before}"
        wrong += same.startswith("NOT")
        print(f"{name:60} {mine['rounds']:6} {mine['hash']:18} {same}")
    if earlier:
        print(
            f"{len(results) - wrong} of {len(results)} equal; "
            f"rounds: {sum(row['rounds'] for row in results.values())}"
        )
    return int(wrong > 0 or bool(earlier.keys() - results.keys()))


if __name__ == "__main__":
    start(main)
