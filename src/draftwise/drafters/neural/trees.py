"""Trees that grow by joint probability: EAGLE-2's, with OPT-Tree's rule for when to stop growing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from torch import Tensor

from ...core.arms import Stop
from ...core.drafts import Draft, Job, Signals
from ...core.stops import factor, needs, stop
from ...errors import UserError
from .chains import Step, signals


def check_tree(width: int, top: int, gain: float) -> None:
    """Reject options out of range.

    Raises:
        UserError: a number of nodes is below 1, or a gain below 0.
    """
    if min(width, top) < 1 or gain < 0:
        raise UserError(
            f"width={width}&top={top}&gain={gain}: give width and top 1 or more and gain 0 or more"
        )


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
    chances: list[float] = field(default_factory=list)  # under the rule `gain`, of each node
    probs: list[float] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])
    above: list[int] = field(
        default_factory=list
    )  # for each frontier node, its parent's index in the previous frontier
    read: list[int] = field(default_factory=list)
    depth: int = 0
    value: float = 0.0
    joint: float = 1.0
    done: bool = False
    previous: Signals | None = None

    @property
    def most(self) -> int:
        """The maximum number of nodes of the draft."""
        return self.job.length * self.job.width

    def grow(self, rows: Tensor) -> None:
        """Add the most likely tokens after each frontier node: raw logits, shape (frontier, vocabulary)."""
        best = rows.float().log_softmax(-1).topk(min(self.top, self.most, rows.shape[-1]))
        values, ids = best.values.tolist(), best.indices.tolist()
        first = len(self.tokens)
        rule = self.job.stop_at(self.depth)
        places: list[int] = []
        for place, parent in enumerate(self.frontier):
            score = self.scores[parent] if parent >= 0 else 0.0
            for value, token in zip(values[place], ids[place], strict=True):
                if value <= -1e30:  # -inf: a token outside the drafter's vocabulary
                    break
                if rule.rule == "gain" and not self._pays(rule, parent, exp(value)):
                    break  # nor do the less likely ones
                self.tokens.append(token)
                self.parents.append(parent)
                self.scores.append(score + value)
                places.append(place)
        new = sorted(range(first, len(self.tokens)), key=lambda node: (-self.scores[node], node))
        self.frontier = new[: self.top]
        self.above = [places[node - first] for node in self.frontier]
        self.depth += 1
        self.done = not new or self.depth >= self.job.length or self._settled() or self._stopped(rows, rule)

    def path(self, node: int) -> list[int]:
        """Return the tokens from the root down to a node."""
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
        signals = [Signals(0.0, 0.0, 0.0, self.probs[i]) for i in best] if self.probs else []
        return Draft(tuple(tokens), tuple(parents), signals=tuple(signals))

    def _pays(self, rule: Stop, parent: int, probability: float) -> bool:
        """Return whether a new node's chance is worth its price; if so, it is noted."""
        above = self.chances[parent] if parent >= 0 else 1.0
        chance = above * rule.scorer.score(Signals(0.0, 0.0, 0.0, probability))
        if chance < rule.threshold and self.chances:
            return False
        self.chances.append(chance)
        self.probs.append(probability)
        return True

    def _best(self) -> list[int]:
        return sorted(range(len(self.tokens)), key=lambda node: (-self.scores[node], node))[: self.most]

    def _settled(self) -> bool:
        """Return if further growth would change nothing, or gain too little."""
        best = self._best()
        value = sum(exp(self.scores[node]) for node in best)
        gained, self.value = value - self.value, value
        full = len(best) == self.most and self.scores[self.frontier[0]] <= self.scores[best[-1]]
        return full or gained < self.gain

    def _stopped(self, rows: Tensor, rule: Stop) -> bool:
        """Return if the job's stop rule for this depth applies to its most likely node, or to the depth."""
        if rule.rule == "gain":
            return sum(self.chances[node] for node in self.frontier) <= rule.deeper
        names, position = needs(self.job.stops), self.depth - 1
        if not names:
            return False
        place = self.job.request.position + position
        now = signals(rows[self.above[0]], self.tokens[self.frontier[0]], names, place, None)
        previous, self.previous = self.previous, now
        self.joint *= factor(rule, now, position=position)
        return bool(stop(rule, now, position=position, previous=previous, joint=self.joint))


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
