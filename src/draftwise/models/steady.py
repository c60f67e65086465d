"""Whether a model's logits depend on the number of threads that compute them."""

from __future__ import annotations

import torch

from .probe.readings import made_up
from .runner import Rows

TEXT, WIDTHS = 24, (1, 9)  # tokens before the compared passes, and of them


class Steady:
    """What was found out so far, by the numbers of threads and by how the passes are run."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, bool], bool] = {}

    def holds(self, rows: Rows, numbers: tuple[int, int]) -> bool:
        """Whether passes with both numbers of threads have the same logits, bit for bit.

        Libraries split a sum among threads, other than our own kernels, where it pays: the last bits then
        change with their number. False also for a model with states or with hooks, which is not tried.
        """
        if type(rows) is not Rows or rows.watchers:
            return False
        key = (*numbers, rows.graph is not None)
        if key not in self.found:
            here = torch.get_num_threads()
            try:
                self.found[key] = _same(rows, numbers)
            finally:
                torch.set_num_threads(here)
        return self.found[key]


@torch.inference_mode()
def _same(rows: Rows, numbers: tuple[int, int]) -> bool:
    tokens = made_up(TEXT + max(WIDTHS), rows.model.config, int(rows.config.vocab_size))
    logits = []
    for number in numbers:
        torch.set_num_threads(number)
        scratch = rows.scratch(rows.graph)
        scratch.open(0)
        read = [scratch.feed(0, [tokens[:TEXT]], 1)]
        for width in WIDTHS:
            scratch.held[0] = TEXT
            read.append(scratch.feed(0, [tokens[TEXT : TEXT + width]], width))
        logits.append(read)
    return all(torch.equal(one, other) for one, other in zip(*logits, strict=True))
