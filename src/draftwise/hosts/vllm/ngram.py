"""vLLM's own n-gram lookup as a drafter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...core.drafts import Draft, Job
from ...core.request import Request
from ...errors import UserError, one_line
from .names import EngineDrafter


class NgramDrafter:
    """Drafts with vLLM's `NgramProposer`, from the engine's own copy of the texts.

    Raises:
        UserError: this vLLM has none.
    """

    has_probabilities = False

    def __init__(self, name: EngineDrafter, config: Any) -> None:
        self.longest = int(config.speculative_config.num_speculative_tokens)
        self.least = float(name.least)
        view = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=name.least,
                prompt_lookup_max=name.most,
                num_speculative_tokens=self.longest,
            ),
            model_config=config.model_config,
            scheduler_config=config.scheduler_config,
            parallel_config=config.parallel_config,
        )
        try:
            self.proposer = import_module("vllm.v1.spec_decode.ngram_proposer").NgramProposer(view)
        except Exception as error:  # another release
            raise UserError(
                f"drafter {name.text}: this vLLM has no such lookup ({one_line(error)})"
            ) from None

    def begin(self, rows: Mapping[Hashable, int], texts: Any, key_of: Callable[[int], Hashable]) -> None:
        """Receive the texts of a step, shape (requests, tokens), and the row of each request."""
        self.rows, self.texts, self.key_of = rows, texts, key_of

    def hint(self, request: Request) -> float:
        """Return the least length of a match if there is one, else 0: vLLM does not tell the length."""
        return self.least if self._draft(request) else 0.0

    def observe(self, request: Request, new: Sequence[int]) -> None:
        """Do nothing: the texts are the engine's."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Return the text that follows the latest match, for each job."""
        return [Draft.chain(self._draft(job.request)[: job.length]) for job in jobs]

    def close(self, request: Request) -> None:
        """Do nothing: nothing is kept."""

    def _draft(self, request: Request) -> list[int]:
        """Return the longest draft after the request's text, which may be shorter than the engine's."""
        row = self.rows[self.key_of(request.id)]
        lengths = np.zeros(len(self.texts), dtype=np.int32)
        lengths[row] = len(request.tokens)
        wanted: list[list[int]] = [[0] if at == row else [] for at in range(row + 1)]
        drafts: list[list[int]] = self.proposer.propose(self.longest, wanted, lengths, self.texts)
        return drafts[row]
