"""Trees that grow by joint probability: EAGLE-2's, with OPT-Tree's rule for when to stop growing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

from torch import Tensor

from ...core.arms import Stop
from ...core.drafts import Draft, Job, Signals
from ...core.stops import factor, needs, stop
from ...models.runner.drafts import TreeInput, TreeLevel
from .chains import Step, signals


@dataclass(slots=True)
class Tree:
    """A tree while it is drafted: a node's score is the log of its path's joint probability.

    EAGLE-2 (arXiv 2406.16858): at each depth the `top` best nodes of the previous depth are expanded by the
    `top` most likely tokens each; at the end the best length * width nodes are kept. OPT-Tree (arXiv
    2406.17276): grow only while the sum of the best nodes' joint probabilities, the expected number of
    accepted tokens, grows by more than `gain` per depth. A stop rule of the job is applied to the most likely
    node of each depth; but `gain` to every node: those whose calibrated chance to be accepted is below its
    threshold are left out, but for the best of all, and the tree grows while the chances of a depth add up to
    more than `deeper`.
    """

    job: Job
    top: int
    gain: float = 0.0
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)  # calibrated, under the rule `gain`; else 1
    signals: list[Signals] = field(default_factory=list)  # under that rule
    frontier: list[int] = field(default_factory=lambda: [-1])
    above: list[int] = field(
        default_factory=list
    )  # for each frontier node, its parent's index in the previous frontier
    places: list[int] = field(default_factory=lambda: [0])  # of frontier nodes among those read on the device
    read: list[int] = field(default_factory=list)
    depth: int = 0
    value: float = 0.0
    joint: float = 1.0
    done: bool = False
    previous: Signals | None = None

    @property
    def most(self) -> int:
        return self.job.length * self.job.width

    def grow(self, rows: Tensor) -> None:
        """Add the most likely tokens after each frontier node: raw logits, shape (frontier, vocabulary)."""
        best = rows.float().log_softmax(-1).topk(min(self.top, self.most, rows.shape[-1]))
        nodes = self._add(best.values.tolist(), best.indices.tolist(), range(len(self.frontier)))
        above = {node: place // best.values.shape[1] for place, node in nodes.items()}
        frontier = sorted(above, key=lambda node: (-self.scores[node], node))[: self.top]
        self._read_next(frontier, [above[node] for node in frontier], rows)

    def add_level(self, level: TreeLevel) -> None:
        """Add a depth whose tokens were found on the device; continue from the nodes that were read there."""
        nodes = self._add(level.values, level.tokens, self.places)
        frontier = {nodes[at]: place for place, at in enumerate(level.picked) if at in nodes}
        self.places = [*frontier.values()]
        self._read_next([*frontier], [], None)

    def _add(
        self, values: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], places: Sequence[int]
    ) -> dict[int, int]:
        """Add tokens after each frontier node, whose own are at these places; returns the nodes by theirs."""
        rule, nodes, width = self.job.stop_at(self.depth), dict[int, int](), len(tokens[0])
        for place, parent in zip(places, self.frontier, strict=True):
            score, above = (self.scores[parent], self.chances[parent]) if parent >= 0 else (0.0, 1.0)
            for rank, (value, token) in enumerate(zip(values[place], tokens[place], strict=True)):
                if value <= -1e30:  # -inf: a token outside the drafter's vocabulary
                    break
                chance = above
                if rule.rule == "gain":
                    chance *= rule.scorer.score(Signals(0.0, 0.0, 0.0, exp(value)))
                    if chance < rule.threshold and self.tokens:
                        break  # nor do the less likely ones pay
                    self.signals.append(Signals(0.0, 0.0, 0.0, exp(value)))
                nodes[place * width + rank] = len(self.tokens)
                self.chances.append(chance)
                self.tokens.append(token)
                self.parents.append(parent)
                self.scores.append(score + value)
        return nodes

    def _read_next(self, frontier: list[int], above: list[int], rows: Tensor | None) -> None:
        """Read these nodes next, unless the tree is complete."""
        self.frontier, self.above = frontier, above
        self.depth += 1
        full = not frontier or self.depth >= self.job.length or self._settled()
        self.done = full or self._stopped(rows, self.job.stop_at(self.depth - 1))

    def path(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def follow(self) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens of the frontier, to be read next; empty if the tree is complete.

        With them come their parents as indices into the previous frontier, and the parents of all nodes read
        so far, including these.
        """
        if self.done:
            return [], [], []
        self.read += self.frontier
        where = {node: place for place, node in enumerate(self.read)} | {-1: -1}
        tokens = [self.tokens[i] for i in self.frontier]
        return tokens, self.above, [where[self.parents[i]] for i in self.read]

    def draft(self) -> Draft:
        """Return the best nodes; a parent's score is never lower than its child's, so they form a tree."""
        best = sorted(self._best())
        where = {node: place for place, node in enumerate(best)} | {-1: -1}
        tokens, parents = [self.tokens[i] for i in best], [where[self.parents[i]] for i in best]
        return Draft(
            tuple(tokens), tuple(parents), signals=tuple(self.signals[i] for i in best if self.signals)
        )

    def _best(self) -> list[int]:
        return sorted(range(len(self.tokens)), key=lambda node: (-self.scores[node], node))[: self.most]

    def _settled(self) -> bool:
        """Return if further growth would change nothing, or gain too little."""
        best = self._best()
        value = sum(exp(self.scores[node]) for node in best)
        gained, self.value = value - self.value, value
        full = len(best) == self.most and self.scores[self.frontier[0]] <= self.scores[best[-1]]
        return full or gained < self.gain

    def _stopped(self, rows: Tensor | None, rule: Stop) -> bool:
        """Return if the job's stop rule for this depth applies to its most likely node, or to the depth."""
        if rule.rule == "gain":
            return sum(self.chances[node] for node in self.frontier) <= rule.deeper
        names, position = needs(self.job.stops), self.depth - 1
        if not names or rows is None:
            return False
        place = self.job.request.position + position
        now = signals(rows[self.above[0]], self.tokens[self.frontier[0]], names, place, None)
        previous, self.previous = self.previous, now
        self.joint *= factor(rule, now, position=position)
        return bool(stop(rule, now, position=position, previous=previous, joint=self.joint))


def draft_trees_at_once(
    runner: Any, jobs: Sequence[Job], logits: Tensor, states: Tensor, ids: Tensor | None, **options: Any
) -> list[Draft] | None:
    """Draft a tree for each of the first rows in one replay; None where the executor cannot.

    `logits` (rows, vocabulary) and `states` are those after the texts, `ids` the tokens that the head drafts.
    """
    trees = [Tree(job, **options) for job in jobs]
    sizes = {(job.length, min(tree.top, tree.most)) for job, tree in zip(jobs, trees, strict=True)}
    reads_rows = any(rule.rule not in ("never", "gain") for job in jobs for rule in job.stops)
    if len(sizes) > 1 or reads_rows:
        return None
    ((depth, top),) = sizes
    given = TreeInput(logits, states, depth, min(top, logits.shape[-1]), ids)
    levels = runner.executor.try_trees(runner, given)
    if levels is None:
        return None
    for tree, mine in zip(trees, levels, strict=True):
        for level in mine:
            if not tree.done:
                tree.add_level(level)
    return [tree.draft() for tree in trees]


def draft_trees(jobs: Sequence[Job], logits: Tensor, step: Step, *, top: int, gain: float) -> list[Draft]:
    """Draft a tree for each job; `logits` (jobs, 1, vocabulary) are those after its text."""
    trees = [Tree(job, top, gain) for job in jobs]
    while True:
        for tree, rows in zip(trees, logits, strict=True):
            if not tree.done:
                tree.grow(rows[: len(tree.frontier)])
        if all(tree.done for tree in trees):
            return [tree.draft() for tree in trees]
        tokens, above, parents = zip(*map(Tree.follow, trees), strict=True)
        logits, _ = step(tokens, above, parents)


def sparse(accuracies: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """Medusa's fixed tree (arXiv 2401.10774, section 2.3.3): the `nodes` best paths of ranks, parents first.

    `accuracies[k][r]` is how often the token of rank r of head k is correct; a path's value is the product
    over its ranks, one per head from the first on.
    """
    paths: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    best: list[tuple[float, tuple[int, ...]]] = []
    for ranks in accuracies:
        paths = sorted(
            ((value * p, (*path, r)) for value, path in paths for r, p in enumerate(ranks)),
            key=lambda item: (-item[0], item[1]),
        )[:nodes]
        best += paths
    best.sort(key=lambda item: (-item[0], len(item[1]), item[1]))
    chosen: set[tuple[int, ...]] = set()
    for _, path in best:
        if len(chosen) < nodes and (len(path) == 1 or path[:-1] in chosen):
            chosen.add(path)
    return sorted(chosen, key=lambda path: (len(path), path))
