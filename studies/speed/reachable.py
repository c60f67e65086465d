"""How near to the clairvoyant optimum a policy comes that was taught in advance, and is told more.

    python -m studies.speed.reachable TRACE [--costs COSTS] [--half 1]

Gradient-boosted trees learn, from all prompts of the other half, the chance that the first 1, 2, ... tokens
of each drafter are right at a place: by match lengths, lengths and common tokens of the lookups' drafts, the
position, the last two tokens, and which of the last tokens each drafter had right. "Told" adds what no policy
knows before it drafts: the model's own first token, its probability, and which lookups agree with it. Each
round then plays the draft of the highest expected gain at the known costs, where a second is worth the rate
of the whole (Dinkelbach). `auto` learns chances and costs as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from draftwise.measure.trace import Costs, Trace, read_costs
from draftwise.measure.trace.oracle import best, confirmed
from draftwise.measure.trace.stage import Stage
from studies.common.command import command, start
from studies.speed.ablation import ratio
from studies.speed.baselines import played

PAGE = "docs/explanation/auto-measured.md"
LONGEST, RECENT = 16, 8
TREES: Mapping[str, Any] = {"max_iter": 80, "learning_rate": 0.08, "max_leaf_nodes": 15, "random_state": 0}
Matrix = np.ndarray[Any, Any]
Chances = Mapping[str, Matrix]
"""By drafter: the chance that its first 1, 2, ... tokens are right, shape (places, LONGEST)."""


def known(stage: Stage, *, told: bool) -> Matrix:
    """What is known at each place of a text, shape (places, features)."""
    one, lines = stage.recording, stage.lines
    models = [name for name in lines if _model(stage, name)]
    hits = {name: confirmed(stage, mine)[0] for name, mine in lines.items()}
    text = [*one.prompt.tolist(), *stage.text]
    rows = []
    for at in range(one.committed):
        here = one.prompt.size + at
        row = [float(at), float(one.prompt.size), float(text[here - 1]), float(text[here - 2])]
        drafts = {name: _tokens(stage, name, at) for name in lines}
        for name in lines:
            row += [lines[name].hint[at], float(len(drafts[name])) if name not in models else 0.0]
            row.append(float(hits[name][max(0, at - RECENT) : at].sum()))
        looked = [drafts[name] for name in lines if name not in models]
        row.append(float(_common(looked)))
        for name in models if told else ():
            row += _told(stage, name, at, looked)
        rows.append(row)
    return np.array(rows)


def _told(stage: Stage, name: str, at: int, looked: Sequence[Sequence[int]]) -> list[float]:
    """A model's first token, its probability, and which lookups agree with it."""
    lines = stage.lines[name]
    first, n = lines.span(at, 1)
    if not n:
        return [-1.0, 0.0, *(0.0 for _ in looked)]
    token, signals = lines.tokens[first], lines.answers.signals
    sure = float(signals[first, 3]) if len(signals) else 0.0
    return [float(token), sure, *(float(list(draft[:1]) == [token]) for draft in looked)]


def _model(stage: Stage, name: str) -> bool:
    return not any(name == lookup or name.startswith(f"{lookup}?") for lookup in ("ngram", "suffix"))


def _tokens(stage: Stage, name: str, at: int) -> list[int]:
    first, n = stage.lines[name].span(at, LONGEST)
    return stage.lines[name].tokens[first : first + n]


def _common(drafts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all these drafts have in common."""
    count = 0
    for tokens in zip(*drafts, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def right(stage: Stage, name: str) -> Matrix:
    """How many tokens of each drafter's longest draft are right, by place."""
    found: Matrix = confirmed(stage, stage.lines[name])[LONGEST - 1]
    return found


def learned(train: Sequence[Stage], test: Sequence[Stage], *, told: bool) -> list[Chances]:
    """The chances at the places of the test texts, from the training texts."""
    xs, places = np.concatenate([known(s, told=told) for s in train]), [known(s, told=told) for s in test]
    ends = np.cumsum([len(one) for one in places])[:-1]
    found: list[dict[str, Matrix]] = [{} for _ in test]
    for name in train[0].lines:
        runs = np.concatenate([right(stage, name) for stage in train])
        columns = []
        for depth in range(1, LONGEST + 1):
            hit = runs >= depth
            if hit.all() or not hit.any():
                columns.append(np.full(sum(map(len, places)), float(hit.mean())))
                continue
            trees = HistGradientBoostingClassifier(**TREES)
            columns.append(trees.fit(xs, hit).predict_proba(np.concatenate(places))[:, 1])
        curve = np.minimum.accumulate(np.stack(columns, 1), 1)
        for one, part in zip(found, np.split(curve, ends), strict=True):
            one[name] = part
    return list(found)


def seconds(stage: Stage, chances: Chances, costs: Costs, price: float) -> tuple[float, int]:
    """Seconds and tokens of a text where each round plays the highest expected gain at this price."""
    one, at, read, spent = stage.recording, 0, 0, 0.0
    runs = {name: right(stage, name) for name in stage.lines}
    while at < one.committed:
        here = one.prompt.size + at
        chosen, asked = _chosen(stage, chances, costs, price, at, here - read)
        accepted = min(int(runs[chosen][at]), asked) if asked else 0
        spent += costs.target(1 + asked)
        if asked:
            spent += costs.of(chosen).draft(asked)
            if _model(stage, chosen):
                spent += costs.of(chosen).catch_up * (here - read)
                read = here + accepted + 1
        at += accepted + 1
    return spent, at


def _chosen(
    stage: Stage, chances: Chances, costs: Costs, price: float, at: int, unread: int
) -> tuple[str, int]:
    """The draft of the highest expected gain at a place; no token if none gains."""
    one, best_gain, best_draft = stage.recording, 0.0, ("", 0)
    left, plain = max(1.0, (one.committed - at) / 8), costs.target(1)
    for name in stage.lines:
        n = min(len(_tokens(stage, name, at)), max(one.budget - at - 1, 0))
        reading = costs.of(name).catch_up * unread / left if _model(stage, name) else 0.0
        for k, expected in enumerate(np.cumsum(chances[name][at][:n]).tolist(), 1):
            more = reading + costs.of(name).draft(k) + costs.target(1 + k) - plain
            if expected - price * more > best_gain:
                best_gain, best_draft = expected - price * more, (name, k)
    return best_draft


def taught(stages: Sequence[Stage], chances: Sequence[Chances], costs: Costs) -> Matrix:
    """Seconds on each text, at the price that is the rate of the whole."""
    price = 1.0 / costs.target(1)
    for _ in range(5):
        found = [seconds(stage, mine, costs, price) for stage, mine in zip(stages, chances, strict=True)]
        price = sum(n for _, n in found) / sum(spent for spent, _ in found)
    return np.array([spent for spent, _ in found])


def main() -> None:
    """Print a row for `auto` and for each taught policy."""
    parser = command(__doc__, PAGE)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--costs", default="", help="a file or a profile; by default those of each trace")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1, help="prompts that are reported")
    asked = parser.parse_args()
    print("| trace | prompts | policy | of the optimum | `auto`'s time over its own |\n" + "|---" * 5 + "|")
    for folder in asked.traces:
        trace, costs = Trace(folder), read_costs(asked.costs or str(folder / "costs.json"))
        whole = [Stage(one) for one in trace]
        test = [s for i, s in enumerate(whole) if i % 2 == asked.half]
        train = [s for i, s in enumerate(whole) if i % 2 != asked.half]
        optimum = np.array([best(stage, costs).seconds for stage in test])
        mine = played(trace, "auto", costs, test)
        rows = {"auto": mine}
        for label, told in (("taught", False), ("taught and told", True)):
            rows[label] = taught(test, learned(train, test, told=told), costs)
        for label, found in rows.items():
            share, (middle, low, high) = 100 * optimum.sum() / found.sum(), ratio(mine, found)
            cells = (
                folder.name,
                len(test),
                label,
                f"{share:.1f} %",
                f"{middle:.3f} ({low:.3f} to {high:.3f})",
            )
            print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    start(main)
