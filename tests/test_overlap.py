"""Block divergence, of chains and of trees: a tree is no better for being wide."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch

from draftwise.core.accept import block
from draftwise.core.drafts import Draft
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback, Outcome
from draftwise.core.request import Request
from draftwise.core.roles import Graders, RoundRecord
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.policies.catalogue import method
from draftwise.policies.recorders.bandit import reward
from draftwise.targets.hf import HFTarget
from tests.drafters.neural.heads import random_eagle, target, trained_eagle
from tests.targets.test_hf import prompts

#          -1
#        0     1
#      2  3    4
#      5
TREE = Draft((7, 8, 7, 9, 9, 5), (-1, -1, 0, 0, 1, 2))
PARTS = (0.4, 0.5, 0.3, 0.2, 0.7, 0.6)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ((), (0.9, 0.5, 0.6)),  # nothing was accepted: down the first children 0, 2, 5
        ((0,), (0.9, 0.5, 0.6)),
        ((0, 3), (0.9, 0.5)),  # node 3 has no children
        ((1,), (0.9, 0.7)),
        ((1, 4), (0.9, 0.7)),
        ((0, 2, 5), (0.9, 0.5, 0.6)),
    ],
)
def test_a_tree_counts_along_one_path_and_siblings_together(
    path: Sequence[int], found: tuple[float, ...]
) -> None:
    assert block(TREE, path, PARTS) == pytest.approx(found)


def test_a_chain_counts_whole_beyond_the_first_rejection_too() -> None:
    assert block(Draft.chain([1, 2, 3]), (0,), [0.9, 0.1, 0.4]) == (0.9, 0.1, 0.4)
    assert block(Draft(), (), ()) == ()


def grown(rng: Random, nodes: int) -> tuple[Draft, list[float], list[int]]:
    """A random tree, a part of a whole for each child of a node, and a path that the text may take."""
    parents = [rng.randrange(-1, i) for i in range(nodes)]
    parts = [0.0] * nodes
    for parent in set(parents):
        siblings = [i for i, above in enumerate(parents) if above == parent]
        cuts = sorted(rng.random() for _ in siblings)
        for i, low, high in zip(siblings, [0.0, *cuts], cuts, strict=False):
            parts[i] = high - low
    path: list[int] = []
    while below := [i for i, above in enumerate(parents) if above == (path[-1] if path else -1)]:
        if rng.random() < 0.3:
            break
        path.append(rng.choice(below))
    return Draft(tuple(range(nodes)), tuple(parents)), parts, path


def test_no_tree_is_worth_more_than_one_or_more_than_its_depth() -> None:
    rng = Random(0)
    for _ in range(500):
        draft, parts, path = grown(rng, rng.randint(2, 40))
        found = block(draft, path, parts)
        assert len(found) >= len(path) and all(0.0 <= x <= 1.0 for x in found)
        worth = reward("block-divergence")(Outcome(0, len(path), len(parts), overlaps=found), len(found))
        assert worth is not None and 0.0 <= worth <= 1.0


def test_rounding_makes_no_reward_above_one() -> None:
    worth = reward("block-divergence")(Outcome(0, 2, 2, overlaps=(1.0000001, 1.0)), 2)
    assert worth == 1.0


def test_a_wide_bad_tree_does_not_win_by_its_breadth() -> None:
    """A head with random weights and trees of 40 nodes, against a trained one with chains of five."""
    made = target()
    reads = HFTarget(made, chunk=8)
    team = {
        "wide": EagleDrafter(random_eagle(made), reads, width=8),
        "good": EagleDrafter(trained_eagle(made), reads),
    }
    chosen = method("metasd-ucb?per_query=false", list(team))
    heard: list[tuple[RoundRecord, list[int], float]] = []

    class Ear:
        reads = chosen.recorder.reads

        def add(self, batch: Sequence[RoundRecord], graders: Graders) -> Sequence[Feedback]:
            found = chosen.recorder.add(batch, graders)
            for seen, known in zip(batch, found, strict=True):
                if known.outcomes and seen.draft.tokens:
                    text = seen.request.tokens[: -len(seen.tokens)]
                    heard.append((seen, text, known.outcomes[0].reward))
            return found

        def close(self, request: Request) -> Sequence[Feedback]:
            return chosen.recorder.close(request)

    loop = Loop(reads, team, chosen.policy, Ear())
    list(loop.run(prompts(), Sampling(max_new_tokens=60)))
    arms = [chosen.policy.arms[seen.decision.arm].drafter for seen, _, _ in heard]
    wide = [one for one, arm in zip(heard, arms, strict=True) if arm == "wide"]
    assert wide and all(not seen.draft.is_chain for seen, _, _ in wide)
    for seen, text, worth in wide:
        assert worth == pytest.approx(by_hand(made, seen, text) / 5)
    assert all(0.0 <= worth <= 1.0 for _, _, worth in heard)
    assert arms.count("good") > 5 * arms.count("wide")


def by_hand(made: object, seen: RoundRecord, text: list[int]) -> float:
    """The chance, at each depth of the tree, that the target takes a child of the node reached."""
    total, node, path = 0.0, -1, list(seen.nodes[1:])
    draft, before = seen.draft, list(text)
    while below := [i for i, parent in enumerate(draft.parents) if parent == node]:
        distribution = made(torch.tensor([before])).logits[0, -1].detach().softmax(-1)  # type: ignore[operator]
        total += sum(float(distribution[draft.tokens[i]]) for i in below)
        node = path.pop(0) if path else below[0]
        before.append(draft.tokens[node])
    return total
