"""The ways in which `ModelRunner` reads, each returning the relative error of its logits on a known text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runner import ModelRunner, PassInput
from .readings import Readings


def _read(runner: ModelRunner, *given: Any, **more: Any) -> Tensor:
    return runner.forward(PassInput(*given, **more)).logits


@torch.inference_mode()
def alone(runner: ModelRunner, known: Readings) -> float:
    """One text in pieces, a rejected draft, an accepted one, and a single token."""
    n, text = known.n, known.tokens
    wrong = [text[0], text[1]]
    runner.open(0)
    _read(runner, 0, [text[: n - 4]], 1)
    errors = [known.error(_read(runner, 0, [[*text[n - 4 : n], *wrong]], 3)[0, :1], [0])]
    runner.cached_lengths[0] = n
    errors.append(known.error(_read(runner, 0, [text[n : n + 3]], 3)[0], [1, 2, 3]))
    runner.cached_lengths[0] = n + 2
    errors.append(known.error(_read(runner, 0, [text[n + 2 : n + 3]], 1)[0], [3]))
    return max(errors)


@torch.inference_mode()
def side_by_side(runner: ModelRunner, known: Readings) -> float:
    """Two texts of different lengths, first one longer than the other, then both of one length."""
    n, text = known.n, known.tokens
    runner.open(0)
    runner.open(1)
    _read(runner, 0, [text[: n + 2]], 1)
    said = _read(runner, 0, [text[n + 2 : n + 3], text[:n]], n)
    errors = [known.error(said[0, :1], [3]), known.error(said[1, -1:], [0])]
    runner.cached_lengths[0] = n + 1
    said = _read(runner, 0, [text[n + 1 : n + 3], text[n : n + 1]], 2)
    errors += [known.error(said[0], [2, 3]), known.error(said[1, :1], [1])]
    for width in (1, 3):
        runner.cached_lengths[:] = [n, n]
        said = _read(runner, 0, [text[n : n + width]] * 2, width)
        errors += [known.error(row, range(1, width + 1)) for row in said]
    return max(errors)


@torch.inference_mode()
def stateful(runner: ModelRunner, known: Readings) -> float:
    """Two texts in turn, until an error shows."""
    worst = 0.0
    for error in _stateful(runner, known):
        worst = max(worst, error)
        if worst > known.tolerance:
            break
    return worst


def _stateful(runner: ModelRunner, known: Readings) -> Iterator[float]:
    """At once, in pieces, one by one; drafts that stay, or are taken back, once and again; a text that begins
    again, and one that a pass spoilt."""
    n, text = known.n, known.tokens
    wrong = [text[0], text[1]]
    runner.open(0)
    runner.open(1)
    yield known.error(_read(runner, 0, [text], 5)[0], range(5))
    _read(runner, 1, [text[: n - 6]], 1)
    yield known.error(_read(runner, 1, [text[n - 6 : n]], 1)[0], [0])
    for i in range(n, n + 4):
        yield known.error(_read(runner, 1, [text[i : i + 1]], 1)[0], [i + 1 - n])
    for row, kept in ((0, n - 4), (1, 0)):
        runner.truncate(row, kept)
        yield known.error(_read(runner, row, [text[kept:n]], 1)[0], [0])
        yield known.error(_read(runner, row, [[text[n], *wrong]], 3, is_guess=True)[0, :1], [1])
        runner.truncate(row, n + 1)
        yield known.error(_read(runner, row, [[text[n + 1], *wrong]], 3, is_guess=True)[0, :1], [2])
        runner.truncate(row, n + 2)
        yield known.error(_read(runner, row, [text[n + 2 :]], 2, is_guess=True)[0], [3, 4])
    for row in (1, 0):
        _read(runner, row, [wrong], 1)
        runner.truncate(row, n + 3)
        yield known.error(_read(runner, row, [text[n + 3 :]], 1)[0], [4])


@torch.inference_mode()
def neighbours(runner: ModelRunner, known: Readings) -> float:
    """Two texts with states in shared passes: of different lengths, one token each, drafts of which another
    part stays in each, and passes that read unequal parts of them again."""
    n, text = known.n, known.tokens
    wrong = [text[0], text[1]]
    for row, length in ((0, n + 1), (1, n)):
        runner.open(row)
        _read(runner, row, [text[:length]], 1)
    said = _read(runner, 0, [text[n + 1 : n + 2], text[n : n + 1]], 1)
    errors = [known.error(said[0], [2]), known.error(said[1], [1])]
    said = _read(runner, 0, [[text[n + 2], *wrong], [*text[n + 1 : n + 3], wrong[0]]], 3, is_guess=True)
    errors += [known.error(said[0, :1], [3]), known.error(said[1, :2], [2, 3])]
    runner.truncate(0, n + 3)
    runner.truncate(1, n + 3)
    said = _read(runner, 0, [[text[n + 3], wrong[0]], [text[n + 3]]], 2, is_guess=True)
    errors += [known.error(said[0, :1], [4]), known.error(said[1, :1], [4])]
    return max(errors)


@torch.inference_mode()
def branched(runner: ModelRunner, known: Readings, *, together: bool) -> float:
    """A tree with wrong branches, together with a text of another length if the model allows it, and the
    tokens after it, once its accepted tokens were moved to their slots."""
    n, text = known.n, known.tokens
    runner.open(0)
    _read(runner, 0, [text[:n]], 1)
    tree = [text[0], text[n + 1], text[1], text[n + 2]]  # the second and the last are correct
    texts, keep = [[text[n], *tree]], 5
    if together:
        runner.open(1)
        texts.append(text[:n])
        keep = max(keep, n)
    said = _read(runner, 0, texts, keep, parents={0: [-1, -1, 1, 1]})
    errors = [known.error(said[0, [at]], [i]) for at, i in ((0, 1), (2, 2), (4, 3))]
    if together:
        errors.append(known.error(said[1, n - 1 : n], [0]))
    runner.cache.move([(0, n + 2, n + 1), (0, n + 4, n + 2)], runner.device)
    runner.cached_lengths[0] = n + 3
    errors.append(known.error(_read(runner, 0, [text[n + 3 :]], 1)[0], [4]))
    return max(errors)


@torch.inference_mode()
def read_pieces(
    runner: ModelRunner, tokens: list[int], begin: int, sizes: Sequence[int], others: int = 0
) -> Tensor:
    """The logits of a text from token `begin` on, which is read in pieces, beside so many others.

    Passes are run as the runner's own. Shape (tokens, vocabulary).
    """
    scratch, logits, done = runner.scratch(runner.executor), list[Tensor](), 0
    for row in range(others + 1):
        scratch.open(row)
    for size in sizes:
        texts = [*[tokens[-3:]] * others, tokens[done : done + size]]
        is_needed = done + size > begin
        output = scratch.forward(PassInput(0, texts, max(map(len, texts)) if is_needed else 1))
        if is_needed:
            logits.append(output.logits[others, max(0, begin - done) : len(texts[-1])])
        done += size
    return torch.cat(logits)
