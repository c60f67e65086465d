"""The target of a `generate` call: the processors that Transformers prepared decide each row's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...core.drafts import Draft
from ...core.request import Request
from ...core.roles import Scores
from ...models.distributions import Chain
from ...targets.hf import HFTarget
from .padding import neutral
from .prompt import CachedRow, Prompt
from .together import Padding, Steps, Together


class HostTarget(HFTarget):
    """The model that `generate` was called on.

    Rows that advance independently have their processors in `shapes`, by request; others are `together`.
    `usual` is the default prefill chunk.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.usual = self.chunk
        self.shapes: dict[int, Chain] = {}
        self.together: Together | None = None

    @cached_property
    def neutral(self) -> bool:
        """True if padding before a row changes nothing in it."""
        return neutral(self.runner.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.runner.device

    def ragged(self, n: int) -> bool:
        """Return whether `n` rows may advance by different numbers of tokens."""
        return True

    def enter(self, prompt: Prompt, row: int, request: Request) -> None:
        """Load what a given cache holds of this row."""
        prompt.cached[row].load(self.runner, request.id)

    def padding(self, steps: Steps, limit: int, prompt: Prompt) -> Padding:
        """The logits of finished rows, read in passes of their own."""

        def read(row: int, tokens: Sequence[int], n: int) -> Tensor:
            return self.logits([*prompt.texts[row], *tokens], n, prompt.cached[row])

        # A token beyond the model's positions would fail, although the text may end before it.
        limits = [min(limit, self.max_length + 1 - len(text)) for text in prompt.texts]
        return Padding(steps, limits, read)

    def launch(self, batch: Sequence[tuple[Request, Draft]]) -> Callable[[], list[Scores]]:
        """Start a pass over each request's last token and its draft."""
        if self.together is None:
            return super().launch(batch)
        self.together.prepare(batch)
        try:
            return super().launch(batch)
        except Exception as error:
            self.together.error = error
            raise

    def close(self, request: Request) -> None:
        """Free the request's row."""
        super().close(request)
        self.shapes.pop(request.id, None)

    def logits(self, tokens: Sequence[int], n: int, cached: CachedRow) -> Tensor:
        """The model's own logits at the last `n` of these tokens, in a separate pass; shape (n, vocabulary).

        `cached` has the keys and values of the first tokens.
        """
        ids = torch.tensor([list(tokens[cached.length :])], device=self.runner.device)
        cache = cached.cache()
        inputs = {self.runner.cache_name: cache, "use_cache": cache is not None}
        logits: Tensor = self.runner.model(input_ids=ids, **inputs).logits
        return logits[0, -n:]

    def _scores(
        self, batch: Sequence[tuple[Request, Draft]], rows: list[int], widths: list[int], logits: Tensor
    ) -> Callable[[], list[Scores]]:
        read, together = super()._scores(batch, rows, widths, logits), self.together
        if together is None:
            return read

        def read_together() -> list[Scores]:
            try:
                scores: list[Any] = read()
                return [*together.scores(batch, [one.logits for one in scores])]
            except Exception as error:
                together.error = error
                raise

        return read_together

    def _plain(self, request: Request) -> bool:
        if self.together is not None:
            return True
        shape = self._chain(request)
        return request.sampling.greedy and not shape.historic and not shape.warpers

    def _chain(self, request: Request) -> Chain:
        return self.shapes[request.id]
