"""The walk down a draft: trees and chains, picked and sampled, with a target whose opinions are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from draftwise import accept
from draftwise.core.accept import walk
from draftwise.core.drafts import NOTHING, Draft, Verdict


class Opinions:
    """The target's own token after each node, and its probability of each drafted one."""

    def __init__(self, choices: Mapping[int, int], probs: Sequence[float] = ()) -> None:
        self.choices, self.probs = choices, probs

    def choice(self, node: int) -> int:
        return self.choices[node]

    def prob(self, node: int) -> float:
        return self.probs[node]

    def residual(self, node: int) -> int:
        return 100 + node

    def logprob(self, node: int, token: int) -> float:
        return 0.0

    def chance(self, node: int, token: int) -> float:
        return float(self.choices[node] == token)

    def distributions(self, nodes: Sequence[int]) -> None:
        return None

    def overlaps(self) -> list[float]:
        return []


class Uniforms(Random):
    """Gives the numbers it was made with."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


#        -1
#      /    \
#   0: 5    1: 6
#    |     /    \
#  2: 7  3: 7   4: 8
#          |
#        5: 9
TREE = Draft((5, 6, 7, 7, 8, 9), (-1, -1, 0, 1, 1, 3))


@pytest.mark.parametrize(
    ("choices", "path", "token"),
    [
        ({-1: 4}, (), 4),
        ({-1: 5, 0: 7, 2: 9}, (0, 2), 9),  # the 9 of the draft hangs below another node
        ({-1: 5, 0: 8}, (0,), 8),  # so does the 8
        ({-1: 6, 1: 7, 3: 9, 5: 1}, (1, 3, 5), 1),
        ({-1: 6, 1: 8, 4: 9}, (1, 4), 9),
        ({-1: 6, 1: 5}, (1,), 5),
    ],
)
def test_a_tree_is_followed_where_the_target_goes(
    choices: dict[int, int], path: tuple[int, ...], token: int
) -> None:
    assert accept(TREE, Opinions(choices), Uniforms()) == Verdict(path, token)


def test_an_empty_draft_is_plain_decoding() -> None:
    assert accept(Draft(), Opinions({-1: 3}), Uniforms()) == Verdict((), 3)


def test_a_picked_chain_is_right_or_wrong_whatever_its_probabilities() -> None:
    draft = Draft.chain([1, 2, 3], probs=[0.9, 0.1, 0.5])
    assert accept(draft, Opinions({-1: 1, 0: 2, 1: 4}), Uniforms()) == Verdict((0, 1), 4)


@pytest.mark.parametrize(
    ("numbers", "probs", "verdict"),
    [
        ((0.4, 0.4), (0.25, 0.25), Verdict((0, 1), 7)),  # 0.4 x 0.5 is below 0.25, twice
        ((0.4, 0.6), (0.25, 0.25), Verdict((0,), 101)),  # the second is not: a token in its place
        ((0.9,), (0.1, 0.9), Verdict((), 100)),
        ((0.99, 0.99), (0.5, 0.9), Verdict((0, 1), 7)),  # what the target likes better is always kept
        ((0.0,), (0.0, 0.9), Verdict((), 100)),  # what the target rules out never is
    ],
)
def test_a_sampled_token_is_kept_with_p_over_q(
    numbers: tuple[float, ...], probs: tuple[float, ...], verdict: Verdict
) -> None:
    draft = Draft.chain([1, 2], probs=[0.5, 0.5], dist=["one", "two"])
    assert accept(draft, Opinions({1: 7}, probs), Uniforms(*numbers)) == verdict


@pytest.mark.parametrize(
    ("numbers", "choices", "verdict"),
    [
        ((0.4, 0.4), {1: 7}, Verdict((0, 1), 7)),
        ((0.4, 0.4), {1: 8, 6: 5}, Verdict((0, 1, 6), 5)),  # the target's own token after the chain
        ((0.4, 0.9), {4: 3}, Verdict((0, 4), 3)),  # the token that replaced the second: 101
        ((0.9,), {}, Verdict((), 100)),  # no sibling of the first has 100
        ((0.4, 0.9), {4: 9, 5: 6}, Verdict((0, 4, 5), 6)),  # and on below the sibling
    ],
)
def test_a_token_that_replaces_a_sampled_one_may_be_a_picked_sibling(
    numbers: tuple[float, ...], choices: dict[int, int], verdict: Verdict
) -> None:
    """Nodes 0 and 1 are sampled; what is written is the same without the nodes behind them."""
    draft = Draft((1, 2, 8, 101, 101, 9, 8), (-1, 0, -1, -1, 0, 4, 1), probs=(0.5, 0.5), dist=["one", "two"])
    assert accept(draft, Opinions(choices, (0.25, 0.25)), Uniforms(*numbers)) == verdict
    alone = Draft.chain((1, 2), probs=(0.5, 0.5), dist=["one", "two"])
    plain = accept(alone, Opinions({1: choices.get(1, 0)}, (0.25, 0.25)), Uniforms(*numbers))
    beyond = [draft.tokens[node] for node in verdict.path if node > 1]
    assert plain == Verdict(tuple(n for n in verdict.path if n < 2), beyond[0] if beyond else verdict.token)


@pytest.mark.parametrize(("end", "path"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2, 3))])
def test_an_accepted_end_is_the_last_token(end: int, path: tuple[int, ...]) -> None:
    """The target is not asked what follows: it has no opinion there."""
    tokens = [7, 7, 7, 7]
    tokens[end - 1] = 3

    def over(path: Sequence[int]) -> bool:
        return tokens[path[-1]] == 3

    sampled = Draft.chain(tokens, probs=[0.5] * 4, dist=["any"] * 4)
    wanted = Verdict(path, NOTHING)
    assert accept(sampled, Opinions({}, [1.0] * 4), Uniforms(*[0.9] * end), over) == wanted
    agreed = {node - 1: tokens[node] for node in range(end)}
    assert accept(Draft.chain(tokens), Opinions(agreed), Uniforms(), over) == wanted
    tree = Draft((*tokens, 8), (-1, 0, 1, 2, 0))
    assert accept(tree, Opinions(agreed), Uniforms(), over) == wanted


def test_an_end_that_the_target_writes_itself_is_its_token() -> None:
    def never(path: Sequence[int]) -> bool:
        return False

    assert accept(Draft.chain([7]), Opinions({-1: 3}), Uniforms(), never) == Verdict((), 3)
    assert accept(Draft.chain([7]), Opinions({-1: 7, 0: 3}), Uniforms(), never) == Verdict((0,), 3)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_walk_that_raises_tells_how_far_it_came(sampled: bool) -> None:
    draft = Draft.chain([7, 8, 9], probs=[0.5] * 3, dist=["any"] * 3 if sampled else None)
    path: list[int] = []
    with pytest.raises(LookupError):
        walk(draft, Opinions({-1: 7, 0: 8}, [1.0, 1.0]), Uniforms(0.5, 0.5, 0.5), path)
    assert path == [0, 1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 300])
def test_after_a_draft_that_was_right_throughout_comes_the_targets_own(n: int) -> None:
    """The token after the last node, and no other's. Ids, and nodes of long drafts, are so large that equal
    ones are not the same object."""
    ids = [int(f"70{i}") for i in range(n)]
    own = {node: 1000 + node for node in range(-1, n)}
    sampled = Draft.chain(ids, probs=[0.5] * n, dist=["any"] * n)
    whole = tuple(range(n))
    assert accept(sampled, Opinions(own, [0.5] * n), Uniforms(*[0.99] * n)) == Verdict(whole, 999 + n)
    agreed = {node - 1: int(f"70{node}") for node in range(n)} | {n - 1: 5}
    assert accept(Draft.chain(ids), Opinions(agreed), Uniforms()) == Verdict(whole, 5)


def test_a_chance_as_large_as_the_targets_is_no_chance() -> None:
    """Of u q < p the border falls to the rejections, so that p = 0 is never accepted."""
    draft = Draft.chain([1], probs=[0.5], dist=["any"])
    assert accept(draft, Opinions({0: 7}, [0.25]), Uniforms(0.5)) == Verdict((), 100)
    assert accept(draft, Opinions({0: 7}, [0.25]), Uniforms(0.499)) == Verdict((0,), 7)
