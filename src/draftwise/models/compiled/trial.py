"""Compares compiled passes with eager ones: their logits, and their time on this machine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor

from .. import verdicts
from ..probe.readings import HALF, LEAST, made_up, relative_error
from ..runner import ModelRunner, PassInput, PassOutput
from ..verdicts import finish, save_answer, trials
from ..weights import timing
from .blueprint import Unfit

TEXT = 24  # tokens of the first text; the second is shorter
TIMED = 128  # tokens before the timed passes
PIECE = 32  # of them that are read in one pass
BUDGET = 6.0  # seconds of timing: enough rounds for passes of 0.1 s, and little beside compiling
KIND = "compiled"  # the file of verdicts
UNTIMED = {"pays": True, "ratio": nan}  # without the time for a trial: compiled passes are rarely slower

Trial = Generator[None, None, float]
"""A trial of a graph in steps of one eager and one compiled pass, so that texts need not wait for its end."""


@torch.inference_mode()
def try_out(runner: ModelRunner, graph: Any) -> Trial:
    """Return the time of compiled passes over that of eager ones, the median over widths.

    Raises:
        Unfit: the logits differ by more than rounding, or compiled passes are not faster.
    """
    tokens = made_up(TIMED + max(timing.WIDTHS), runner.model.config)
    yield from _check(runner, graph, tokens)
    key = f"{graph.plan.key} threads {torch.get_num_threads()}"
    known = verdicts.load(KIND, key)
    if not isinstance(known, dict) or not isinstance(known.get("ratio"), float) or "pays" not in known:
        known = None
    if trials().wants(known):
        known = (yield from _timed(runner, graph, tokens, key)) or known
    known = known or UNTIMED
    if not known["pays"]:
        clearly = "not clearly faster here" if known["ratio"] < 1.0 else "slower here"
        raise Unfit(f"compiled passes are {clearly}: {known['ratio']:.2f} times the time of eager ones")
    return float(known["ratio"])


def compare(runner: ModelRunner, executor: Any) -> None:
    """Raise Unfit if logits of an executor's passes differ from those of eager ones by more than rounding."""
    tokens = made_up(2 * TEXT, runner.model.config)
    finish(_check(runner, executor, tokens))


def _timed(
    runner: ModelRunner, graph: Any, tokens: list[int], key: str
) -> Generator[None, None, dict[str, float] | None]:
    """The verdict, which is saved; None without the time for a trial."""
    pair = [runner.scratch(executor) for executor in (None, graph)]
    for scratch in pair:
        scratch.open(0)
    for start in range(0, TIMED, PIECE):
        for scratch in pair:
            _read(scratch, [tokens[start : start + PIECE]], 1)
        yield

    def through(scratch: ModelRunner) -> timing.Pass:
        def run(width: int) -> Tensor:
            scratch.cached_lengths[0] = TIMED
            return _read(scratch, [tokens[TIMED : TIMED + width]], width).logits

        return run

    now = trials()
    eager, compiled = map(through, pair)
    found = yield from now.spread(
        "compiled passes",
        timing.measure(eager, compiled, budget=now.budget(BUDGET), limit=now.limit),
    )
    if found is None:
        return None
    ratios = sorted(found.ratios)
    verdict = {"pays": found.pays, "ratio": round(ratios[len(ratios) // 2], 3)}
    save_answer(KIND, key, verdict, lasting=found.lasting)
    return verdict


def _check(runner: ModelRunner, graph: Any, tokens: list[int]) -> Generator[None, None, None]:
    """A prompt, single tokens, a draft, a rewind and, where several texts share a pass, two of them."""
    passes: list[tuple[list[int], list[Sequence[int]]]] = [
        ([0], [tokens[:TEXT]]),
        ([TEXT], [tokens[TEXT : TEXT + 1]]),
        ([TEXT + 1], [tokens[TEXT + 1 : TEXT + 10]]),
        ([TEXT + 3], [tokens[TEXT + 3 : TEXT + 5]]),
    ]
    if runner.together:
        passes += [
            ([TEXT + 5, 0], [tokens[TEXT + 5 : TEXT + 6], tokens[: TEXT // 2]]),
            ([TEXT + 6, TEXT // 2], [tokens[TEXT + 6 : TEXT + 9], tokens[TEXT // 2 : TEXT // 2 + 2]]),
            ([TEXT // 2 + 2] * 2, [tokens[TEXT : TEXT + 4]] * 2),  # what both rows have read
        ]
    pair = [runner.scratch(executor) for executor in (None, graph)]
    worst, most = 0.0, tolerance(runner.dtype)
    for starts, texts in passes:
        eager, compiled = (_forward(scratch, starts, texts) for scratch in pair)
        for i, text in enumerate(texts):
            places = [(eager.logits[i, at], compiled.logits[i, at]) for at in range(len(text))]
            for layer in runner.layers:
                both = eager.hidden_states[layer][i], compiled.hidden_states[layer][i]
                places.append((both[0][: len(text)].flatten(), both[1][: len(text)].flatten()))
            worst = max([worst, *(relative_error(theirs, own) for own, theirs in places)])
        if not worst <= most:
            raise Unfit(
                f"its logits are off by {worst:.1g} of their spread, where rounding explains {most:.1g}"
            )
        yield


def tolerance(dtype: torch.dtype) -> float:
    """The relative error that rounding explains, where a graph computes what an eager pass does."""
    return max((32 if dtype in HALF else 8) * torch.finfo(dtype).eps, LEAST)


def _forward(runner: ModelRunner, starts: list[int], texts: list[Sequence[int]]) -> PassOutput:
    while len(runner.request_ids) < len(starts):
        runner.open(len(runner.request_ids))
    runner.cached_lengths[: len(starts)] = starts
    return _read(runner, texts, max(map(len, texts)))


def _read(runner: ModelRunner, texts: list[Sequence[int]], keep: int) -> PassOutput:
    states = None
    if runner.reads_states:  # the same numbers for the same shape
        states = runner.blank_states(len(texts), width := max(map(len, texts)))
        states.normal_(generator=torch.Generator(states.device).manual_seed(width))
    return runner.forward(PassInput(0, texts, keep, states=states))
