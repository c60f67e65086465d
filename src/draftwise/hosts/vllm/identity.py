"""Matches rows of vLLM's batch to requests: rows move when requests end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ByText:
    """Identifies requests by their texts, for a vLLM that gives no request ids.

    A row belongs to the request whose text it continues, with preference for the one in the same row; two
    requests with the same text are interchangeable. A request that is missing from a step is closed: if vLLM
    preempts and resumes it, it counts as new.
    """

    def __init__(self) -> None:
        self._texts: dict[int, tuple[int, NDArray[np.int32]]] = {}  # key -> (row, text)
        self._next = 0

    def keys(self, sampled: Sequence[Sequence[int]], lengths: Any, token_ids: Any) -> list[int]:
        """A key for each row, the same as in the previous step for the same request."""
        left = dict(self._texts)
        self._texts = {}
        keys = []
        for row, new in enumerate(sampled):
            length = int(lengths[row])
            text = np.array(token_ids[row, :length], dtype=np.int32)
            key = self._known(left, row, text[: length - len(new)])
            if key is None:
                key, self._next = self._next, self._next + 1
            left.pop(key, None)
            self._texts[key] = (row, text)
            keys.append(key)
        return keys

    def _known(
        self, left: dict[int, tuple[int, NDArray[np.int32]]], row: int, before: NDArray[np.int32]
    ) -> int | None:
        same = [key for key, (_, text) in left.items() if len(text) == len(before)]
        same.sort(key=lambda key: left[key][0] != row)
        return next((key for key in same if np.array_equal(left[key][1], before)), None)
