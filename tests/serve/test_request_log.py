"""Every request leaves a line and a count, also one that no route sees."""

from __future__ import annotations

import json
import logging
import socket
from collections import Counter
from collections.abc import Callable
from threading import Event as Flag
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftwise.serve.middleware import LOG, json_to_stderr

from .conftest import MODEL, Served, asking, connected, line, until

Start = Callable[..., Served]
PATH = "/v1/completions"
GOOD: dict[str, Any] = {"model": MODEL, "prompt": "abcdefghij", "max_tokens": 9, "temperature": 0}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The lines of the requests so far."""
    caplog.set_level(logging.INFO, logger=LOG.name)
    return lambda: [record.msg for record in caplog.records if isinstance(record.msg, dict)]


def counts(server: Served) -> Counter[tuple[str, ...]]:
    """Requests by route, status and reason."""
    found = Counter[tuple[str, ...]]()
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "draftwise:http_requests_total":
                found[tuple(sample.labels[name] for name in ("route", "status", "reason"))] += int(
                    sample.value
                )
    return found


def test_every_request_is_a_line_and_a_count(serve: Start, lines: Any) -> None:
    server = serve(key="secret", max_body=1000)
    client = server.client
    client.get("/health")
    client.post(PATH, json=GOOD)
    client.post(PATH, json=GOOD | {"max_tokns": 1})
    client.post(PATH, json={"model": MODEL})
    client.post(PATH, json=GOOD | {"stop": 5})
    client.post(PATH, content=b"{", headers={"content-type": "application/json"})
    client.post(PATH, json=GOOD | {"model": "other"})
    client.post(PATH, json=GOOD | {"prompt": "a" * 1000})
    client.get(PATH)
    client.get("/nowhere/" + "x" * 500)
    client.get(f"/v1/models/{MODEL}")
    client.get("/v1/models", headers={"authorization": "Bearer wrong"})
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"no HTTP\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    expected = [
        ("/health", 200, "ok"),
        (PATH, 200, "ok"),
        (PATH, 400, "unknown_parameter"),
        (PATH, 400, "missing_required_parameter"),
        (PATH, 400, "invalid_value"),
        (PATH, 400, "invalid_json"),
        (PATH, 404, "model_not_found"),
        (PATH, 413, "body_too_large"),
        (PATH, 405, "method_not_allowed"),
        ("other", 404, "not_found"),
        ("/v1/models/{name:path}", 200, "ok"),
        ("/v1/models", 401, "invalid_api_key"),
        ("other", 400, "invalid_http"),
    ]
    until(lambda: len(lines()) == len(expected))
    assert [(one["route"], one["status"], one["reason"]) for one in lines()] == expected
    assert counts(server) == Counter((route, str(status), reason) for route, status, reason in expected)
    assert all(one["client"].startswith("127.0.0.1:") and one["seconds"] >= 0 for one in lines())
    written, refused = lines()[1:3]
    assert (written["tokens"], written["finished"], written["prompt_tokens"]) == (9, 1, 10)
    assert refused["param"] == "max_tokns" and "is not known here" in refused["message"]
    assert GOOD["prompt"] not in str(lines()) and len(str(lines())) < 5000


def test_a_stream_says_how_it_ended(serve: Start, lines: Any) -> None:
    server = serve()
    body = GOOD | {"stream": True, "max_tokens": 300}
    with server.client.stream("POST", PATH, json=body | {"max_tokens": 9}) as answer:
        answer.read()
    until(lambda: len(lines()) == 1)
    target: Any = server.decoder.loop.target
    target.held.set()
    with connected(server, asking(**body)) as client:
        target.let()
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    target.release()
    until(lambda: len(lines()) == 2)
    assert [(one["status"], one["reason"]) for one in lines()] == [(200, "ok"), (200, "client_left")]
    assert lines()[0]["tokens"] == 9 and lines()[1]["tokens"] < 300
    assert server.complete()["choices"][0]["text"] == line("b", 20)


def test_lines_of_others_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    with json_to_stderr(requests=False):
        logging.getLogger("uvicorn.error").warning("Invalid\nrequest %d", 5)
        LOG.info({"status": 200})
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("draftwise.serve.engine").exception("a step failed")
    own, failed = [json.loads(row) for row in capsys.readouterr().err.splitlines()]
    assert (own["level"], own["message"], own["logger"]) == ("warning", "Invalid\nrequest 5", "uvicorn.error")
    assert failed["level"] == "error" and "KeyError: 'x'" in failed["traceback"] and failed["time"] > 0


def test_a_stream_without_its_first_piece(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    target = server.decoder.loop.target
    target.held.set()
    with caplog.at_level(logging.INFO):
        asked = asking(prompt="abc", echo=True, logprobs=1, stream=True, max_tokens=9)
        client = connected(server, asked)
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
    client = connected(server, asking(prompt="abc"))
    until(lambda: waiting)
    client.close()
    until(lambda: waiting[0].cancelled())
    free.set()
    server.complete("xyz")
    assert len(waiting) == 3  # the form and the prompt of the second request
