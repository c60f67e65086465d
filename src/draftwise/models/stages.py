"""What a user sees while a model is loaded: the stages, and none of the libraries' own bars and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import CRITICAL, getLogger
from typing import Any

LOG = getLogger(__name__)

listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)
"""Takes the name of each stage as it begins; without one they are logged."""


def announce(stage: str) -> None:
    """Say which stage begins, such as `reading zoo:target`."""
    (listener.get() or LOG.info)(stage)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of Transformers and the hub, then restore them."""
    from transformers.utils import logging

    chatter: Any = logging
    hub = getLogger("huggingface_hub")
    before = chatter.get_verbosity(), chatter.is_progress_bar_enabled(), hub.level
    chatter.set_verbosity(CRITICAL)
    chatter.disable_progress_bar()
    hub.setLevel(CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        chatter.set_verbosity(before[0])
        if before[1]:
            chatter.enable_progress_bar()
        hub.setLevel(before[2])
