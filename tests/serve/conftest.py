"""A server over a target that writes the alphabet, at a free port of this machine."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event as Flag
from threading import Thread
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("llguidance")

import uvicorn

from draftwise import Decoder, method
from draftwise.serve.app import make_app
from draftwise.serve.engine import Engine
from draftwise.serve.limits import Limits
from draftwise.serve.run import bind, make_config, names_of
from draftwise.serve.sandbox import Vocabulary
from draftwise.serve.service import Service
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.cli.conftest import LETTERS, LINE, Letters, Sometimes, after

MODEL = "letters"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


class Gated(SimTarget):
    """Writes the alphabet; while `held` is set, a pass waits for one permission of `let`."""

    def __init__(self, distribution: Any = None) -> None:
        super().__init__(distribution or after(1), len(LETTERS), max_length=400)
        self.held, self.turn, self.taken = Flag(), Flag(), Flag()

    def verify(self, batch: Any) -> Any:
        if self.held.is_set():
            self.taken.set()
            assert self.turn.wait(60)
            self.turn.clear()
        return super().verify(batch)

    def let(self) -> None:
        """One pass, once there is one that waits."""
        assert self.taken.wait(60)
        self.taken.clear()
        self.turn.set()

    def release(self) -> None:
        """All passes from now on, and the one that may wait."""
        self.held.clear()
        self.turn.set()


def simulated(
    policy: str = "random", target: Any = None, drafters: Mapping[str, Any] | None = None, **options: Any
) -> Decoder:
    """A decoder with one drafter that is often right and one that never is."""
    team = dict(drafters or {"good": Sometimes(), "bad": SimDrafter(after(3))})
    chosen = method(policy, list(team))
    return Decoder(target or Gated(), team, chosen, Letters(), eos=(len(LETTERS) - 1,), seed=3, **options)


class Served:
    """A running server: `service` behind `client`."""

    def __init__(
        self, decoder: Decoder, *, key: str = "", origins: Sequence[str] = (), **limits: Any
    ) -> None:
        self.decoder, self.service = decoder, Service(decoder, MODEL, Limits(**limits))
        self.engine = self.service.engine
        app = make_app(self.service, key=key, hosts=names_of("127.0.0.1"), origins=origins)
        self.socket = bind("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn.Server(make_config(app, 0))
        self.thread = Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        until(lambda: self.server.started)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.url, timeout=None, headers=headers, trust_env=False)

    def ask(self, path: str, **body: Any) -> Any:
        """The JSON of an answer that must be one."""
        answer = self.client.post(path, json={"model": MODEL} | body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, prompt: Any = "ab", **body: Any) -> Any:
        """A plain completion, greedy if nothing else is said."""
        return self.ask("/v1/completions", **{"prompt": prompt, "temperature": 0.0, "max_tokens": 20} | body)

    def chat(self, text: str = "ab", **body: Any) -> Any:
        """A chat, greedy if nothing else is said."""
        said = [{"role": "user", "content": text}]
        return self.ask(
            "/v1/chat/completions", **{"messages": said, "temperature": 0.0, "max_tokens": 20} | body
        )

    def close(self) -> None:
        self.client.close()
        self.engine.stop(seconds=0)
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive() and not self.engine.thread.is_alive()


def until(true: Callable[[], Any]) -> None:
    """Wait for something that must come true; a busy machine may take its time."""
    while not true():
        time.sleep(0.01)


def connected(server: Served, said: bytes = b"", buffer: int = 0) -> socket.socket:
    """A connection by which something has been said."""
    made = socket.socket()
    if buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.settimeout(60)
    made.connect(("127.0.0.1", server.port))
    made.sendall(said)
    return made


def asking(**body: Any) -> bytes:
    """A request to `/v1/completions` as it is sent."""
    told = json.dumps({"model": MODEL} | body).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(told) + told


def vocabulary(tokens: Sequence[str], special: Sequence[int] = ()) -> Any:
    """What llguidance reads of tokens that are these texts; the last ends a text, `special` ones are none."""
    end, texts = len(tokens) - 1, [token.encode().hex() for token in tokens]
    return Vocabulary({"tokens": texts, "special": [*special, end], "ends": [end]}).tokenizer


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """The engine alone, without routes."""
    engine.thread.start()
    try:
        yield
    finally:
        engine.stop(seconds=0)
        engine.thread.join()


@pytest.fixture
def long_models(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two tiny models with a long window."""
    from transformers import LlamaConfig

    from tests import tiny

    config = lambda: LlamaConfig(**tiny.COMMON | {"max_position_embeddings": 8192})  # noqa: E731
    monkeypatch.setitem(tiny.CONFIGS, "long", config)
    return tiny.model("long"), tiny.model("long", seed=1)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Makes servers that end with the test."""
    made: list[Served] = []

    def start(decoder: Decoder | None = None, **options: Any) -> Served:
        made.append(Served(decoder or simulated(), **options))
        return made[-1]

    yield start
    for one in made:
        target = one.decoder.loop.target
        if isinstance(target, Gated):
            target.release()
        one.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One server for tests that leave no trace."""
    one = Served(simulated(), clients_choose="everything")
    yield one
    one.close()


def line(start: str, n: int) -> str:
    """What the target writes after a prompt."""
    at = LINE.index(start[-1]) + 1
    return "".join(LINE[(at + i) % len(LINE)] for i in range(n))
