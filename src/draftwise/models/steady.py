"""Whether a model's logits depend on the number of threads that compute them."""

from __future__ import annotations

import torch

from .probe.readings import made_up
from .probe.ways import read_pieces
from .runner import ModelRunner

SIZES = (24, 1, 9)  # tokens of the compared passes


class Steady:
    """What was found out so far, by the numbers of threads and by how the passes are run."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, str], bool] = {}

    def holds(self, runner: ModelRunner, numbers: tuple[int, int]) -> bool:
        """Whether passes with both numbers of threads have the same logits, bit for bit.

        Libraries split a sum among threads, other than our own kernels, where it pays: the last bits then
        change with their number. False also for a model with states or with hooks, and for passes that only
        one KV cache can have, which are not tried.
        """
        if runner.stateful or runner.layers or runner.executor.is_bound:
            return False
        key = (*numbers, runner.executor.kind)
        if key not in self.found:
            here = torch.get_num_threads()
            try:
                self.found[key] = _same(runner, numbers)
            finally:
                torch.set_num_threads(here)
        return self.found[key]


def _same(runner: ModelRunner, numbers: tuple[int, int]) -> bool:
    tokens, logits = made_up(sum(SIZES), runner.model.config), []
    for number in numbers:
        torch.set_num_threads(number)
        logits.append(read_pieces(runner, tokens, 0, SIZES))
    return torch.equal(*logits)
