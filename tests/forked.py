"""Processes that are forks of this one, so that nothing is imported again."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch

FORK = get_context("fork")


def _alone(run: Callable[..., object], given: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    run(*given)


def start(run: Callable[..., object], *given: Any) -> Any:
    """A process that calls `run`; end it, or wait for it."""
    process = FORK.Process(target=_alone, args=(run, given))
    process.start()
    return process


def result_of(run: Callable[[], Any]) -> Any:
    """What `run` returns in a process of its own: what it does to this library's state is gone afterwards."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = start(lambda: sender.send(run()))
    sender.close()
    try:
        return receiver.recv()  # an EOFError if it has failed, which its traceback on standard error tells
    finally:
        process.join()
