"""A grammar is compiled in a process that ends at its bounds, and with its client."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from draftwise.serve import service
from draftwise.serve.grammar import Grammars, read_vocabulary
from draftwise.serve.sandbox import Connection, Sandbox
from studies.serve.local import counting

from .conftest import MODEL, Served, until

NAMES = [{"$ref": f"#/$defs/a{n + 1}", "type": "object"} for n in range(40)]
DEFS = {f"a{n}": {"patternProperties": {"^a": name, "^b": name}} for n, name in enumerate(NAMES)}
SCHEMA = {"$ref": "#/$defs/a0", "$defs": DEFS | {"a40": {"type": "string", "pattern": "a+"}}}
GROWS = ("tools", f"start: %json {json.dumps(SCHEMA)}")  # nothing looks into it before it is compiled
SMALL = ("regex", "[ab]{2}")


@pytest.fixture(scope="module")
def tokens(tokenizer: Any) -> Any:
    return read_vocabulary(tokenizer, len(tokenizer), None)


@pytest.fixture(scope="module")
def endless(tokens: Any) -> Iterator[Sandbox]:
    """One whose processes end with their clients alone."""
    made = Sandbox(tokens, seconds=1e6, memory=1 << 40)
    yield made
    made.close()


def children(sandbox: Sandbox) -> list[str]:
    """The processes that compile now."""
    assert sandbox._process is not None
    pid = sandbox._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("bounds", [{"memory": 16 << 20}, {"seconds": 0.05}], ids=str)
def test_what_grows_is_refused_and_the_next_is_compiled(tokens: Any, bounds: dict[str, Any]) -> None:
    sandbox = Sandbox(tokens, **bounds)
    with pytest.raises(ValueError, match=r"it grows beyond .* while it is compiled: make it smaller"):
        sandbox.compile(GROWS, Connection())
    assert "[ab]{2}" in sandbox.compile(SMALL, Connection())
    sandbox.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
def test_a_process_ends_with_its_connection(endless: Sandbox) -> None:
    endless.compile(SMALL, Connection())
    until(lambda: not children(endless))
    connection = Connection()
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(endless.compile, GROWS, connection)
        until(lambda: children(endless))
        connection.close()
        with pytest.raises(ValueError, match="it grows"):
            compiling.result()
    until(lambda: not children(endless))


def test_a_process_that_cannot_start_is_no_fault_of_a_grammar() -> None:
    nothing = SimpleNamespace(vocab_size=0, eos_tokens=[])
    with pytest.raises(RuntimeError, match="did not start"):
        Sandbox(nothing).compile(SMALL, Connection())


def test_one_that_ended_is_started_again(tokens: Any) -> None:
    sandbox = Sandbox(tokens)
    sandbox.compile(SMALL, Connection())
    control = sandbox._control
    assert sandbox._process is not None and control is not None
    sandbox._process.kill()
    sandbox._process.wait()
    assert sandbox.compile(SMALL, Connection())
    assert control.fileno() == -1, "nothing of it stays open"
    sandbox.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the folder is always searched before")
def test_modules_of_the_folder_are_not_its_own(
    tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    sandbox = Sandbox(tokens)
    assert sandbox.compile(SMALL, Connection())
    sandbox.close()


def ask(server: Served, client: httpx.Client, grammar: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"model": MODEL, "prompt": "ab", "max_tokens": 4, **grammar})


def test_a_client_that_leaves_ends_its_process_and_frees_its_turn(
    serve: Any, tokenizer: Any, endless: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PER_CLIENT", 1)
    server = serve(counting(tokenizer))
    server.service.parser.grammars.sandbox = endless
    schema = {"type": "json_schema", "json_schema": {"schema": {}}}
    monkeypatch.setattr(
        server.service.parser, "parse_form", lambda body: GROWS if body.response_format else SMALL
    )
    endless.compile(SMALL, Connection())
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(base_url=server.url, timeout=0.5, trust_env=False) as bad,
    ):
        ask(server, bad, {"response_format": schema})
    assert ask(server, server.client, {}).status_code == 200
    until(lambda: not children(endless))


def test_a_client_holds_up_no_other(serve: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, free, bad_forms = serve(counting(tokenizer)), Flag(), list[Any]()
    grammars, made = server.service.parser.grammars, Grammars.compile

    def wait(form: Any, connection: Any) -> Any:
        if form != SMALL:
            bad_forms.append(form)
            free.wait()
        return made(grammars, SMALL, connection)

    monkeypatch.setattr(grammars, "compile", wait)
    local, many = httpx.HTTPTransport(local_address="127.0.0.2"), service.PER_CLIENT + service.COMPILERS
    with (
        ThreadPoolExecutor(many) as pool,
        httpx.Client(base_url=server.url, timeout=None, transport=local) as other,
    ):
        bad = [pool.submit(ask, server, server.client, {"regex": "b{2}"}) for _ in range(many)]
        until(lambda: len(bad_forms) == service.PER_CLIENT)
        assert ask(server, other, {"regex": SMALL[1]}).status_code == 200
        free.set()
        assert {one.result().status_code for one in bad} == {200}


def test_a_tokenizer_that_cannot_be_read_is_a_clear_refusal(serve: Any) -> None:
    server = serve()
    answer = ask(server, server.client, {"regex": "a"})
    assert answer.status_code == 400 and "this model's tokenizer cannot be read" in answer.text
