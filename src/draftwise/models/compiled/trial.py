"""Compares compiled passes with eager ones: their logits, and their time on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import torch
from torch import Tensor

from .. import verdicts
from ..probe.readings import HALF, LEAST, made_up, relative_error
from ..runner import Rows
from ..verdicts import save_answer, trials
from ..weights import timing
from .blueprint import Unfit
from .graph import Graph

TEXT = 24  # tokens of the first text; the second is shorter
TIMED = 128  # tokens before the timed passes
BUDGET = 6.0  # seconds of timing: enough rounds for passes of 0.1 s, and little beside compiling
KIND = "compiled"  # the file of verdicts
UNTIMED = {"pays": True, "ratio": nan}  # without the time for a trial: compiled passes are rarely slower


@torch.inference_mode()
def try_out(rows: Rows, graph: Graph) -> float:
    """The time of compiled passes over that of eager ones, the median over widths.

    Raises:
        Unfit: the logits differ by more than rounding, or compiled passes are not faster.
    """
    tokens = made_up(TIMED + max(timing.WIDTHS), rows.model.config, int(rows.config.vocab_size))
    _check(rows, graph, tokens)
    threads = torch.get_num_threads()
    key = f"{graph.plan.key} threads {threads}"
    known = verdicts.load(KIND, key)
    if not isinstance(known, dict) or not isinstance(known.get("ratio"), float) or "pays" not in known:
        known = None
    if trials().wants(known):
        known = _timed(rows, graph, tokens, key) or known
    known = known or UNTIMED
    if not known["pays"]:
        clearly = "not clearly faster here" if known["ratio"] < 1.0 else "slower here"
        raise Unfit(f"compiled passes are {clearly}: {known['ratio']:.2f} times the time of eager ones")
    return float(known["ratio"])


def _timed(rows: Rows, graph: Graph, tokens: list[int], key: str) -> dict[str, float] | None:
    """The verdict, which is saved; None without the time for a trial."""
    eager, compiled = (rows.scratch(g) for g in (None, graph))

    def through(scratch: Rows) -> timing.Pass:
        scratch.open(0)
        scratch.feed(0, [tokens[:TIMED]], 1)

        def run(width: int) -> Tensor:
            scratch.held[0] = TIMED
            return scratch.feed(0, [tokens[TIMED : TIMED + width]], width)

        return run

    now = trials()
    with now.timed("compiled passes"):
        budget = now.budget(BUDGET)
        found = timing.measure(through(eager), through(compiled), budget=budget, limit=now.limit)
    if found is None:
        return None
    ratios = sorted(found.ratios)
    verdict = {"pays": found.pays, "ratio": round(ratios[len(ratios) // 2], 3)}
    save_answer(KIND, key, verdict, lasting=found.lasting)
    return verdict


def _check(rows: Rows, graph: Graph, tokens: list[int]) -> None:
    """A prompt, single tokens, a draft, a rewind and, where several texts share a pass, two of them."""
    passes: list[tuple[list[int], list[Sequence[int]]]] = [
        ([0], [tokens[:TEXT]]),
        ([TEXT], [tokens[TEXT : TEXT + 1]]),
        ([TEXT + 1], [tokens[TEXT + 1 : TEXT + 10]]),
        ([TEXT + 3], [tokens[TEXT + 3 : TEXT + 5]]),
    ]
    if rows.together:
        passes += [
            ([TEXT + 5, 0], [tokens[TEXT + 5 : TEXT + 6], tokens[: TEXT // 2]]),
            ([TEXT + 6, TEXT // 2], [tokens[TEXT + 6 : TEXT + 9], tokens[TEXT // 2 : TEXT // 2 + 2]]),
            ([TEXT, TEXT], [tokens[TEXT : TEXT + 4], tokens[TEXT : TEXT + 4]]),
        ]
    eager, compiled = (rows.scratch(g) for g in (None, graph))
    errors: list[float] = []
    for starts, texts in passes:
        own, said = (_fed(scratch, starts, texts) for scratch in (eager, compiled))
        errors += [
            relative_error(said[i, at], own[i, at]) for i, text in enumerate(texts) for at in range(len(text))
        ]
    worst, most = max(errors), tolerance(rows.dtype)
    if not worst <= most:
        raise Unfit(f"its logits are off by {worst:.1g} of their spread, where rounding explains {most:.1g}")


def tolerance(dtype: torch.dtype) -> float:
    """The relative error that rounding explains, where a graph computes what an eager pass does."""
    return max((32 if dtype in HALF else 8) * torch.finfo(dtype).eps, LEAST)


def _fed(rows: Rows, starts: list[int], texts: list[Sequence[int]]) -> Tensor:
    while len(rows.keys) < len(starts):
        rows.open(len(rows.keys))
    rows.held[: len(starts)] = starts
    return rows.feed(0, texts, max(map(len, texts)))
