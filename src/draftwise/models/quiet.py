"""Loads models without the progress bars and warnings of Transformers and the hub."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from typing import Any


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
