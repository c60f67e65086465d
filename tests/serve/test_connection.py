"""Clients that hardly send or read."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from draftwise.serve import run
from draftwise.serve.middleware import LOG

from .conftest import HEAD, Served, asking, connected, line, until

Start = Callable[..., Served]
LARGE = {"prompt": "ab", "max_tokens": 200, "temperature": 0.0, "n": 2, "logprobs": 20}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.1)


def connections(server: Served) -> list[Any]:
    return list(server.server.server_state.connections)


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"content-length: 99999999\r\n\r\n"])
def test_a_request_must_come(serve: Start, said: bytes) -> None:
    """Nothing; a head without its end; a body that was refused and keeps coming."""
    server = serve()
    with connected(server, said) as slow:
        until(lambda: not connections(server) or slow.send(b"x") < 0)
    assert server.complete()["choices"][0]["text"] == line("b", 20)


def test_an_answer_may_take_longer(serve: Start) -> None:
    server = serve()
    target: Any = server.decoder.loop.target
    target.held.set()
    with connected(server, asking(prompt="ab", max_tokens=5, temperature=0.0)) as patient:
        until(target.taken.is_set)
        time.sleep(3 * run.PATIENCE)
        target.release()
        assert patient.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_must_be_read(serve: Start, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    server = serve()
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with connected(server, asking(**LARGE, stream=stream), buffer=1024) as slow:
        until(lambda: any(one.flow.write_paused for one in connections(server)))
        if stream:  # of a whole answer all is there
            most = 2 * 65536
            assert all(one.transport.get_write_buffer_size() < most for one in connections(server))
        assert server.complete(max_tokens=30)["choices"][0]["text"] == line("b", 30)
        server.client.close()
        until(lambda: not connections(server) or not slow.recv(1))
    until(lambda: not server.engine.running)
    reason = "slow_reader" if stream else "ok"  # a whole answer was handed over
    until(lambda: any(f"'reason': '{reason}'" in record.getMessage() for record in caplog.records))


def test_who_reads_much_in_each_while_gets_all(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LEAST_BYTES", 1)
    server = serve()
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    whole = server.ask("/v1/completions", **LARGE)
    with connected(server, asking(**LARGE), buffer=1024) as slow:
        until(lambda: any(one.flow.write_paused for one in connections(server)))
        read, began = b"", time.monotonic()
        while time.monotonic() - began < 4 * run.PATIENCE:
            read += slow.recv(4096)
            time.sleep(run.PATIENCE / 20)
        head, _, body = read.partition(b"\r\n\r\n")
        (length,) = [
            int(row.split(b":")[1]) for row in head.splitlines() if row.startswith(b"content-length")
        ]
        while len(body) < length:
            body += (piece := slow.recv(1 << 16))
            assert piece
    assert json.loads(body)["choices"] == whole["choices"]


def test_a_reader_that_leaves_frees_its_rows(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 60.0)
    server = serve(batch=8)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    target: Any = server.decoder.loop.target
    target.held.set()
    with connected(server, asking(**LARGE | {"max_tokens": 300}, stream=True), buffer=1024):
        while not any(one.flow.write_paused for one in connections(server)):
            target.let()
        texts = list(server.engine.running)
        assert texts
    until(lambda: all(text.is_abandoned for text in texts))
    passes = target.passes
    target.release()
    until(lambda: not server.engine.running)
    assert target.passes <= passes + 1 and not server.decoder.loop.open
    assert all(text.stats.tokens < 300 for text in texts)


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:  # the server had not read all
        return True


def limited(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(run, "CONNECTIONS", 3)
    monkeypatch.setattr(run, "LEAST_PATIENCE", seconds)
    monkeypatch.setattr(run, "PATIENCE", 3600.0)


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"content-length: 9\r\n\r\n"])
def test_clients_that_say_nothing_lock_nobody_out(
    serve: Start, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Nothing; half a head; a body that does not come."""
    limited(monkeypatch, 0.0)
    server = serve()
    silent: list[socket.socket] = []
    while len(silent) < 7:
        silent.append(connected(server, said))
        until(lambda: len(connections(server)) == min(len(silent), 3))
        until(lambda: all(one.since for one in connections(server)))
    assert server.complete()["choices"][0]["text"] == line("b", 20)
    assert all(closed(one) for one in silent[:5])  # those that were waited for longest
    for one in silent:
        one.close()


def test_only_so_many_connections(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones wait for nobody's request in vain, and end none that is answered."""
    limited(monkeypatch, 3600.0)
    server = serve()
    target: Any = server.decoder.loop.target
    target.held.set()
    asked = [connected(server, asking(prompt="ab", max_tokens=5, temperature=0.0)) for _ in range(3)]
    until(lambda: len(server.engine.running) + len(server.engine.waiting) == 3)
    with connected(server) as over:
        assert closed(over)
    target.release()
    assert [one.recv(12) for one in asked] == [b"HTTP/1.1 200"] * 3
    with connected(server) as over:  # the others may ask again soon
        assert closed(over)
    for one in asked:
        one.close()
    until(lambda: not connections(server))
    assert server.client.get("/health").status_code == 200


def test_two_lengths_of_a_body_close_the_connection(serve: Start) -> None:
    """A proxy may have read the other one: what it took for a body would be a request."""
    server = serve()
    both = HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    with connected(server, both + b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") as client:
        answer = b""
        while piece := client.recv(1000):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower() and b"send one of them" in answer
