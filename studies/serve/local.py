"""A server in this process, at a free port of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

from draftwise import Decoder
from draftwise.serve.app import make_app
from draftwise.serve.limits import Limits
from draftwise.serve.run import bound
from draftwise.serve.service import Service


@contextmanager
def serving(decoder: Decoder, model: str, **limits: Any) -> Iterator[tuple[str, Service]]:
    """The server's address and its service; it stops at the end."""
    service, listening = Service(decoder, model, Limits(**limits)), bound("127.0.0.1", 0)
    config = uvicorn.Config(make_app(service), log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
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
