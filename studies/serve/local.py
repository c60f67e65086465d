"""A server in this process, at a free port of this machine."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import uvicorn

from draftwise import Decoder, method
from draftwise.serve.app import make_app
from draftwise.serve.limits import Limits
from draftwise.serve.run import bind, make_config
from draftwise.serve.service import Service
from draftwise.testing.distributions import Distribution, Vector
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget


@contextmanager
def serving(decoder: Decoder, model: str, **limits: Any) -> Iterator[tuple[str, Service]]:
    """The server's address and its service; it stops at the end."""
    service, listening = Service(decoder, model, Limits(**limits)), bind("127.0.0.1", 0)
    server = uvicorn.Server(make_config(make_app(service), 0))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", service
    finally:
        service.engine.stop(seconds=0)
        server.should_exit = True
        thread.join()


def following(size: int, step: int) -> Distribution:
    """Logits of which the largest is that of the last token's id plus `step`."""

    def distribution(history: Sequence[int]) -> Vector:
        row = np.zeros(size)
        row[(history[-1] + step) % size] = 30.0
        return row

    return distribution


def counting(tokenizer: Any) -> Decoder:
    """A decoder that writes its vocabulary in order, with a good drafter and a bad one."""
    size = len(tokenizer)
    target = SimTarget(following(size, 1), size, max_length=400)
    team = {"good": SimDrafter(following(size, 1)), "bad": SimDrafter(following(size, 3))}
    chosen = method("random?arms=drafters*lengths", list(team))
    return Decoder(target, team, chosen, tokenizer, eos=(tokenizer.eos_token_id,), seed=0)


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
