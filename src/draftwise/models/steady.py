"""Whether a model's logits depend on the number of threads that compute them."""

from __future__ import annotations

import torch

from .probe.readings import made_up
from .runner import ModelRunner, PassInput

TEXT, WIDTHS = 24, (1, 9)  # tokens before the compared passes, and of them


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


@torch.inference_mode()
def _same(runner: ModelRunner, numbers: tuple[int, int]) -> bool:
    tokens = made_up(TEXT + max(WIDTHS), runner.model.config)
    logits = []
    for number in numbers:
        torch.set_num_threads(number)
        scratch = runner.scratch(runner.executor)
        scratch.open(0)
        read = [scratch.forward(PassInput(0, [tokens[:TEXT]], 1)).logits]
        for width in WIDTHS:
            scratch.cached_lengths[0] = TEXT
            read.append(scratch.forward(PassInput(0, [tokens[TEXT : TEXT + width]], width)).logits)
        logits.append(read)
    return all(torch.equal(one, other) for one, other in zip(*logits, strict=True))
