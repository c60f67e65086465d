"""What is left of a request whose client has gone."""

from __future__ import annotations

import json
import logging
import socket
from threading import Event as Flag
from typing import Any

import pytest

from .conftest import MODEL, Served, until


def sent(server: Served, path: str, **body: Any) -> socket.socket:
    """A connection over which a request was sent."""
    text = json.dumps({"model": MODEL} | body).encode()
    made = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return made


def test_a_stream_without_its_first_piece(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    target = server.decoder.loop.target
    target.held.set()
    with caplog.at_level(logging.INFO):
        client = sent(
            server, "/v1/completions", prompt="abc", echo=True, logprobs=1, stream=True, max_tokens=9
        )
        until(target.taken.is_set)
        client.close()
        until(lambda: any("'client_left'" in record.getMessage() for record in caplog.records))
        target.release()
        until(lambda: not server.engine.running)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not server.decoder.loop.open


def test_a_prompt_that_waits_to_be_read(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, free = serve(), Flag()
    reading = server.service.reading
    reading.submit(free.wait)
    submit, waiting = reading.submit, list[Any]()

    def kept(*given: Any) -> Any:
        waiting.append(submit(*given))
        return waiting[-1]

    monkeypatch.setattr(reading, "submit", kept)
    client = sent(server, "/v1/completions", prompt="abc")
    until(lambda: waiting)
    client.close()
    until(lambda: waiting[0].cancelled())
    free.set()
    server.complete("xyz")
    assert len(waiting) == 3  # the form and the prompt of the second request
