"""A draft of several tokens, or a tree, as one CUDA graph: tokens are chosen on the device and read there.

Without it the host waits for the device once a token. The signals of stop rules are computed beside, and come
to the host with the tokens, in one copy; a rule then cuts the draft, which leaves the distribution of what
stays as it is, since a rule reads nothing of later tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.sampling import Sampling
from ...core.stops import TOP

MOST_STEPS = 16  # of a draft in one graph


class DraftShape(NamedTuple):
    """A class of drafts that one graph makes."""

    rows: int
    steps: int
    slots: int
    is_sampled: bool
    is_cut: bool  # by top-k, top-p or min-p
    has_signals: bool
    is_restricted: bool  # to some tokens
    first: int = 0  # row of the KV cache
    width: int = 1  # above 1, that many of the most likely tokens are read with each

    @property
    def kind(self) -> str:
        """What the code of the draft depends on beside sizes, in words."""
        traits = self.is_sampled, self.is_cut, self.has_signals, self.is_restricted, True
        return " ".join(compress(("sampled", "cut", "graded", "restricted", "drafts"), traits))


@dataclass(slots=True)
class DraftInput:
    """Drafts of `steps` tokens for the first rows, whose last token was just read.

    Attributes:
        logits: After the last token of each row, shape (rows, vocabulary).
        steps: Tokens to draft, the same for all rows.
        vocab_size: How many logits are tokens of the target.
        size: How many tokens the model has; it reads 0 in place of others.
        uniforms: For each row that samples its tokens, a number in [0, 1) for each; None for the others.
        sampling: The settings of each row.
        allowed: The tokens that may be drafted, shape (vocabulary,); None if all may.
        has_signals: Also compute the signals of stop rules.
        states: Of a head: its state after the last token of each row, shape (rows, size).
        ids: Of a head: the target's ids of the tokens that it drafts; None if it drafts all.
        width: Above 1, also find that many of the most likely tokens at each place.
    """

    logits: Tensor
    steps: int
    vocab_size: int
    size: int
    uniforms: Sequence[Sequence[float] | None]
    sampling: Sequence[Sampling]
    allowed: Tensor | None = None
    has_signals: bool = False
    states: Tensor | None = None
    ids: Tensor | None = None
    width: int = 1


@dataclass(slots=True)
class DraftOutput:
    """Drafted tokens of each row, the raw logits and distributions that they came from, and signals.

    `rows` and `distributions` have the shape (rows, steps, vocabulary), and stay on the device; the latter is
    None where no row samples. `signals[row][step]` are the probability that the token was drawn with
    and, if they were asked for, the entropy, the token's raw probability and the largest probabilities.
    `best[row][step]` are the most likely tokens in the token's place, if they were asked for; -1 stands
    for one that may not be drafted. `states` are a head's own, which the last token is to be read with, shape
    (rows, size).
    """

    tokens: list[list[int]]
    rows: Tensor
    distributions: Tensor | None
    signals: list[list[list[float]]]
    best: list[list[list[int]]]
    states: Tensor | None = None


class TreeShape(NamedTuple):
    """A class of trees that one graph drafts: at each depth it reads the `top` best nodes of the last one."""

    rows: int
    depth: int
    top: int
    slots: int
    first: int = 0  # row of the KV cache

    @property
    def kind(self) -> str:
        return "drafts of trees"


@dataclass(slots=True)
class TreeInput:
    """Trees of a head for the first rows, whose last token was just read.

    `logits` and `states` are those after it, shape (rows, vocabulary) and (rows, size). `depth` and `top` are
    those of `TreeShape`, `ids` those of `DraftInput`.
    """

    logits: Tensor
    states: Tensor
    depth: int
    top: int
    ids: Tensor | None


class TreeLevel(NamedTuple):
    """A depth of a tree: after each node that was read, its most likely tokens and their log-probabilities.

    `picked` are the nodes to be read next, the best first: each is a place among all these tokens in a row.
    """

    tokens: list[list[int]]
    values: list[list[float]]
    picked: list[int]


def settings_of(given: DraftInput, rows: int) -> list[list[float]]:
    """Return what the graph reads for each row: temperature (0 = greedy), top-k, top-p, min-p, uniforms."""
    lines = []
    for row in range(rows):
        uniforms = given.uniforms[row] if row < len(given.uniforms) else None
        if uniforms is None:
            lines.append([0.0, 0.0, 1.0, 0.0, *([0.0] * given.steps)])
        else:
            one = given.sampling[row]
            lines.append([one.temperature, float(one.top_k), one.top_p, one.min_p, *uniforms])
    return lines


def choose(x: Tensor, settings: Tensor, step: int, shape: DraftShape) -> tuple[Tensor, Tensor | None]:
    """Choose a token of each row of logits, shape (rows, vocabulary), and return its distribution, too."""
    best = x.argmax(-1)
    if not shape.is_sampled:
        return best, None
    temperature, uniform = settings[:, :1], settings[:, 4 + step : 5 + step]
    q = warp(x.float() / torch.where(temperature > 0, temperature, 1.0).float(), settings, shape.is_cut)
    sums = q.cumsum(-1, dtype=torch.float64)
    total = sums[:, -1:]
    drawn = torch.searchsorted(sums, total * uniform, right=True)[:, 0]
    last = (sums < total).sum(-1)  # the last token with a probability, where rounding leads beyond it
    return torch.where(temperature[:, 0] > 0, torch.minimum(drawn, last), best), q


def warp(x: Tensor, settings: Tensor, is_cut: bool) -> Tensor:
    """Top-k, top-p and min-p as Transformers applies them, with numbers that may differ by row; returns
    probabilities."""
    if is_cut:
        k, p, least = (settings[:, at : at + 1] for at in (1, 2, 3))
        ordered, order = x.sort(-1)  # ascending
        size = x.shape[-1]
        place = torch.where(k > 0, (size - k).clamp(min=0), 0.0).long()
        x = x.masked_fill(x < ordered.gather(-1, place), -torch.inf)
        ordered = x.gather(-1, order)
        below = ordered.softmax(-1).cumsum(-1) <= 1.0 - p.float()
        below[:, -1] = False
        x = x.masked_fill(below.scatter(-1, order, below), -torch.inf)
        chances = x.softmax(-1)
        x = x.masked_fill(chances < least.float() * chances.amax(-1, keepdim=True), -torch.inf)
    return x.softmax(-1)


def signals(x: Tensor, token: Tensor, q: Tensor | None, *, has_signals: bool) -> Tensor:
    """Return a token and its signals as numbers, shape (rows, numbers), from raw logits."""
    chosen = token[:, None]
    numbers = [chosen.double()]
    drawn = torch.ones_like(numbers[0]) if q is None else q.gather(-1, chosen).double()
    if not has_signals:
        return torch.cat([*numbers, drawn], -1)
    logp = x.float().log_softmax(-1)
    top = logp.topk(min(TOP, logp.shape[-1])).values.exp()
    entropy = -(logp.exp() * logp).nansum(-1, keepdim=True)
    numbers += [drawn, entropy.double(), logp.gather(-1, chosen).exp().double(), top.double()]
    return torch.cat(numbers, -1)


def best_tokens(x: Tensor, width: int) -> Tensor:
    """Return the most likely tokens of raw logits, shape (rows, width); -1 for one without a chance."""
    values, tokens = x.topk(min(width, x.shape[-1]))
    return torch.where(values > -torch.inf, tokens, -1).double()


def run_draft(
    read: Callable[[Tensor, int], Tensor],
    shape: DraftShape,
    settings: Tensor,
    logits: Tensor,
    *,
    vocab_size: int,
    size: int,
    allowed: Tensor | None,
) -> tuple[Tensor, ...]:
    """A draft as a function of settings (`settings_of`) and the logits before it, shape (rows, vocabulary).

    `read` runs a pass of one token a row, shape (rows, 1), so many slots after the text. Returns the numbers
    of all tokens, shape (rows, steps, numbers), the raw logits and, if any row samples, the distributions.
    """
    numbers, rows, distributions = list[Tensor](), list[Tensor](), list[Tensor]()
    for step in range(shape.steps):
        x = logits[:, :vocab_size]
        if allowed is not None:
            x = x.masked_fill(~allowed[: x.shape[1]], -torch.inf)
        token, q = choose(x, settings, step, shape)
        line = signals(x, token, q, has_signals=shape.has_signals)
        numbers.append(torch.cat([best_tokens(x, shape.width), line], -1) if shape.width > 1 else line)
        rows.append(x)
        if q is not None:
            distributions.append(q)
        if step + 1 < shape.steps:
            logits = read(torch.where(token < size, token, 0)[:, None], step)
    outputs = [torch.stack(numbers, 1), torch.stack(rows, 1)]
    if distributions:
        outputs.append(torch.stack(distributions, 1))
    return tuple(outputs)


def read_numbers(numbers: Tensor, rows: Tensor, tensors: Sequence[Tensor], shape: DraftShape) -> DraftOutput:
    """Read a draft's numbers from the device, which is its one wait; `tensors` are the outputs after rows."""
    left = list(tensors)
    distributions = left.pop(0) if shape.is_sampled else None
    lines = numbers.tolist()
    n = min(shape.width, rows.shape[-1]) if shape.width > 1 else 0
    found = [[[int(number) for number in step[:n]] for step in row] for row in lines]
    tokens = [[int(step[n]) for step in row] for row in lines]
    signals = [[step[n + 1 :] for step in row] for row in lines]
    return DraftOutput(tokens, rows, distributions, signals, found, left[0] if left else None)


def run_tree(
    read: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    shape: TreeShape,
    logits: Tensor,
) -> Tensor:
    """Trees as a function of the logits before them, shape (rows, vocabulary); see `read_levels`.

    `read` runs a pass over the nodes of a depth, shape (rows, top), so many slots after the text. It takes
    the node above each as a place in the last such pass, and which of all nodes so far each sees.
    """
    top = shape.top
    values, tokens = _likeliest(logits[:, None], top)  # (rows, nodes read, top)
    scores, picked = values[:, 0], torch.arange(top, device=logits.device).expand(shape.rows, -1)
    numbers = [tokens.flatten(1).double(), values.flatten(1).double(), picked.double()]
    own = torch.eye(top, dtype=torch.bool, device=logits.device).expand(shape.rows, -1, -1)
    visible = own
    for level in range(shape.depth - 1):
        nodes, above = tokens.flatten(1).gather(1, picked), picked // top
        if level:
            before = visible.gather(1, above[..., None].expand(-1, -1, visible.shape[2]))
            visible = torch.cat([before, own], -1)
        logits = read(nodes, above, visible, level * top)
        values, tokens = _likeliest(logits, top)
        scores, picked = (scores[..., None] + values).flatten(1).topk(top)
        numbers += [tokens.flatten(1).double(), values.flatten(1).double(), picked.double()]
    return torch.cat(numbers, 1)


def _likeliest(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    values, tokens = logits.float().log_softmax(-1).topk(top)
    return values, tokens


def read_levels(numbers: Tensor, shape: TreeShape) -> list[list[TreeLevel]]:
    """Read the depths of all trees from the device, which is its one wait."""
    trees, top = list[list[TreeLevel]](), shape.top
    for line in numbers.tolist():
        levels, at = list[TreeLevel](), 0
        for depth in range(shape.depth):
            n = top * top if depth else top
            tokens, values, picked = line[at : at + n], line[at + n : at + 2 * n], line[at + 2 * n :][:top]
            rows = range(0, n, top)
            levels.append(
                TreeLevel(
                    [[int(token) for token in tokens[row : row + top]] for row in rows],
                    [values[row : row + top] for row in rows],
                    [int(place) for place in picked],
                )
            )
            at += 2 * n + top
        trees.append(levels)
    return trees
