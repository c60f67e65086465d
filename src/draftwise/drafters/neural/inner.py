"""What drafts for another vocabulary than its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.request import Request


class Model(Protocol):
    """A drafter of tokens of its own: the text of a request that it gets is in these.

    `allowed` are the tokens that it may draft, shape (vocabulary,); None for all. `read` returns the logits
    that predict the last n tokens of each text, shape (n, vocabulary). `rewind` tells it that a text is
    another from one of its tokens on.
    """

    allowed: Tensor | None
    vocab_size: int

    def hint(self, request: Request) -> float: ...

    def draft(self, jobs: Sequence[Job]) -> list[Draft]: ...

    def read(self, wanted: Sequence[tuple[Request, int]]) -> list[Tensor]: ...

    def rewind(self, request: Request, length: int) -> None: ...

    def close(self, request: Request) -> None: ...
