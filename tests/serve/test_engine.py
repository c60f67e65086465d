"""The engine under load: who waits, who leaves, who is refused, and what a fault does to the others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftwise.core.sampling import Sampling
from draftwise.errors import DraftwiseWarning
from draftwise.serve import engine as engines
from draftwise.serve import middleware
from draftwise.serve.engine import Engine
from draftwise.serve.errors import APIError
from draftwise.serve.generations import Event, GenerationRequest
from draftwise.serve.limits import Limits
from draftwise.testing.drafter import SimDrafter
from tests.cli.conftest import LETTERS, after
from tests.core.asynchronous import ThreadTarget

from .conftest import HEAD, MODEL, Gated, Served, asking, connected, line, simulated, until

Start = Callable[..., Served]


class Inbox:
    """Collects the events of some texts."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def text(self, place: int = 0) -> str:
        return "".join(event.text for event in self.events if event.index == place)

    def ends(self) -> list[Event]:
        return [event for event in self.events if event.is_last]


def wishes(n: int = 1, tokens: int = 20) -> list[GenerationRequest]:
    return [GenerationRequest([0, 1], Sampling(max_new_tokens=tokens)) for _ in range(n)]


@pytest.fixture
def gated() -> Any:
    """An engine over a target whose passes wait, one by one, for the test."""
    made: list[Engine] = []

    def start(**limits: Any) -> tuple[Engine, Gated]:
        decoder = simulated()
        made.append(Engine(decoder, Limits(**limits)))
        target = decoder.loop.target
        assert isinstance(target, Gated)
        target.held.set()
        made[-1].thread.start()
        return made[-1], target

    yield start
    for one in made:
        target = one.decoder.loop.target
        assert isinstance(target, Gated)
        target.release()
        one.stop(seconds=0)
        one.thread.join()


def test_a_client_that_leaves_frees_its_row_within_one_step(gated: Any) -> None:
    engine, target = gated(batch=2)
    stays, leaves, comes = Inbox(), Inbox(), Inbox()
    engine.submit(wishes(tokens=40), stays)
    gone = engine.submit(wishes(tokens=40), leaves)
    until(lambda: len(engine.running) == 2)
    target.let()
    assert target.taken.wait(60)  # within the second step
    late = engine.submit(wishes(), comes)
    engine.abandon(gone)
    before = engine.steps
    target.let()
    assert target.taken.wait(60)  # within the third
    assert engine.steps == before + 1
    assert gone[0].is_over and gone[0] not in engine.running and late[0] in engine.running
    assert gone[0].request is not None and gone[0].request.id not in engine.decoder.loop.open
    target.release()
    until(lambda: stays.ends() and comes.ends())
    assert (stays.text(), comes.text()) == (line("b", 40), line("b", 20))


def test_a_full_queue_refuses_whole_requests(gated: Any) -> None:
    engine, target = gated(batch=1, queue=2)
    inbox = Inbox()
    engine.submit(wishes(), inbox)
    engine.submit(wishes(), inbox)
    with pytest.raises(APIError) as refused:
        engine.submit(wishes(2), inbox)
    assert (refused.value.status, len(engine.running) + len(engine.waiting)) == (429, 2)
    assert int(refused.value.headers["retry-after"]) >= 1
    engine.submit(wishes(), inbox)
    target.release()
    until(lambda: len(inbox.ends()) == 3)


def test_a_text_that_takes_too_long_ends_alone(gated: Any) -> None:
    engine, target = gated(batch=2, queue=2)
    slow, other, waits = Inbox(), Inbox(), Inbox()
    engine.submit(wishes(), other)
    engine.submit(wishes(), slow)[0].deadline = 0.0
    engine.submit(wishes(), waits)[0].deadline = 0.0
    target.release()
    until(lambda: slow.ends() and other.ends() and waits.ends())
    for inbox in (slow, waits):
        refusal = inbox.ends()[0].error
        assert refusal is not None and (refusal.status, refusal.code) == (504, "timeout")
    assert other.text() == line("b", 20) and not engine.decoder.loop.open


@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_a_stop_finishes_or_cuts(gated: Any, seconds: float) -> None:
    engine, target = gated(batch=1)
    runs, waits = Inbox(), Inbox()
    engine.submit(wishes(), runs)
    engine.submit(wishes(), waits)
    assert target.taken.wait(60)
    engine.stop(seconds=seconds)
    with pytest.raises(APIError, match="stopping"):
        engine.submit(wishes(), runs)
    target.release()
    engine.thread.join()
    for inbox in (runs, waits):
        (end,) = inbox.ends()
        if seconds:
            assert inbox.text() == line("b", 20)
        else:
            assert end.error is not None and end.error.status == 503
            assert line("b", 20).startswith(inbox.text())
    assert not engine.decoder.loop.open


class Dies(SimDrafter):
    """Drafts well, and then only raises."""

    def __init__(self, drafts: int) -> None:
        super().__init__(after(1))
        self.drafts = drafts

    def draft(self, jobs: Sequence[Any]) -> list[Any]:
        self.drafts -= 1
        if self.drafts < 0:
            raise MemoryError("no memory left")
        return super().draft(jobs)


def test_a_drafter_that_dies_in_mid_batch_harms_nobody(serve: Start) -> None:
    team = {"dies": Dies(4), "bad": SimDrafter(after(3))}
    server = serve(simulated(drafters=team), batch=4)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: server.complete(max_tokens=n), range(20, 36)))
    for n, answer in zip(range(20, 36), answers, strict=True):
        assert answer["choices"][0]["text"] == line("b", n)
    assert any("MemoryError" in f for a in answers for f in a["metrics"]["draftwise"]["faults"])
    assert server.decoder.loop.faults["dies"] >= 3


class NoRows(SimDrafter):
    """Drafts well, and gives what are no distributions with its tokens."""

    def draft(self, jobs: Sequence[Any]) -> list[Any]:
        return [replace(draft, rows=["x"] * len(draft.tokens)) for draft in super().draft(jobs)]


def test_rows_that_are_none_cost_no_log_probability(serve: Start) -> None:
    server = serve(simulated("metasd-ucb", drafters={"wrong": NoRows(after(1)), "bad": SimDrafter(after(3))}))
    (choice,) = server.complete(logprobs=1)["choices"]
    assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == line("b", 20)
    assert len(choice["logprobs"]["token_logprobs"]) == 20 and server.decoder.loop.faults["wrong"]


def test_a_target_that_fails_for_one_text_fails_for_it_alone(serve: Start) -> None:
    class Fails(Gated):
        def verify(self, batch: Any) -> Any:
            if any(request.tokens[0] == LETTERS.index("q") for request, _ in batch):
                raise RuntimeError("the weights are gone")
            return super().verify(batch)

    server = serve(simulated(target=Fails()), batch=4)
    with ThreadPoolExecutor(4) as pool:
        good = pool.submit(server.complete, "ab")
        body = {"model": MODEL, "prompt": "qab", "max_tokens": 5}
        bad = pool.submit(server.client.post, "/v1/completions", json=body)
        assert good.result()["choices"][0]["text"] == line("b", 20)
    assert bad.result().status_code == 500
    assert "the weights are gone" in bad.result().json()["error"]["message"]
    assert bad.result().headers["x-should-retry"] == "false"
    assert server.client.get("/ready").status_code == 200


def test_a_step_that_fails_ends_its_texts_and_not_the_server(serve: Start) -> None:
    server, wrong = serve(), [True]
    step = server.decoder.loop.step

    def once(requests: Any = None) -> Any:
        if wrong and wrong.pop():
            raise RuntimeError("a bug")
        return step(requests)

    server.decoder.loop.step = once  # type: ignore[method-assign]
    body = {"model": MODEL, "prompt": "ab"}
    assert server.client.post("/v1/completions", json=body).status_code == 500
    assert not server.decoder.loop.open
    assert server.complete()["choices"][0]["text"] == line("b", 20)


def test_a_text_that_cannot_be_closed_harms_nobody(gated: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine, target = gated(batch=2)
    close, wrong, late, other = target.close, [True], Inbox(), Inbox()

    def fails(request: Any) -> None:
        if wrong and wrong.pop():
            raise MemoryError("no memory left")
        close(request)

    target.close = fails
    (text,) = engine.submit(wishes(tokens=40), late)
    engine.submit(wishes(tokens=40), other)
    until(lambda: len(engine.running) == 2)
    text.deadline = 0.0
    target.release()
    until(lambda: (late.ends() and other.ends()) or not engine.thread.is_alive())
    assert [end.error and end.error.code for end in late.ends()] == ["timeout"]
    assert other.text() == line("b", 40) and not engine.running
    assert "could not be closed" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_has_failed_takes_nothing_more(gated: Any) -> None:
    engine, _ = gated()
    inbox, codes = Inbox(), list[str | None]()

    def fails() -> bool:
        raise RuntimeError("a bug")

    def save(*, now: bool = False) -> None:
        """A client comes while the engine saves for the last time."""
        try:
            engine.submit(wishes(), inbox)
        except APIError as error:
            codes.append(error.code)

    engine.decoder.loop.prepare, engine._save = fails, save
    engine.submit(wishes(), inbox)
    engine.thread.join()
    assert codes == ["server_stopping"] and [end.error and end.error.code for end in inbox.ends()] == codes


def test_a_body_must_be_small_and_come_at_once(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.2)
    server = serve(max_body=1000)
    answer = server.client.post("/v1/completions", content=b"x" * 1001)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    chunks = server.client.post("/v1/completions", content=iter([b"x" * 600] * 2))
    assert chunks.status_code == 413
    with connected(server, HEAD + b"content-length: 900\r\n\r\n{") as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 408")
    assert server.complete()["choices"][0]["text"] == line("b", 20)


def test_who_still_sends_a_body_that_is_too_large_gets_the_answer(serve: Start) -> None:
    """A connection that is closed meanwhile is reset, and many clients then see no answer."""
    server = serve(max_body=1000)
    head = HEAD + b"content-length: 300000\r\n"
    with connected(server, head + b"\r\n" + b"x" * 1000) as slow:
        answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" not in answer.lower()
        slow.sendall(b"x" * 299000 + asking(prompt="ab", max_tokens=1))
        until(lambda: b"HTTP/1.1 200" in slow.recv(4096))
    with connected(server, head + b"expect: 100-continue\r\n\r\n") as patient:  # it never sends one
        assert b"connection: close" in patient.recv(4096).lower()


def test_all_bodies_together_are_bounded(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "ALL_BODIES", 1)
    server = serve(max_body=1000)
    with connected(server, HEAD + b"content-length: 990\r\n\r\n" + b" " * 980):
        body = {"model": MODEL, "prompt": "ab"}
        until(lambda: server.client.post("/v1/completions", json=body).status_code == 429)
    until(lambda: server.client.post("/v1/completions", json=body).status_code == 200)


def test_a_key_and_the_right_host_are_needed(serve: Start) -> None:
    server = serve(key="secret")
    assert server.complete()["choices"][0]["finish_reason"] == "length"
    with httpx.Client(base_url=server.url, trust_env=False) as stranger:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            for path in ("/v1/models", "/metrics", "/version", "/openapi.json"):
                answer = stranger.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert stranger.get("/health", headers=headers).status_code == 200
    evil = server.client.get("/v1/models", headers={"host": "evil.example"})
    assert evil.status_code == 403 and "evil.example" in evil.json()["error"]["message"]
    assert (
        "access-control-allow-origin"
        not in server.client.get("/health", headers={"origin": "http://x"}).headers
    )


def test_metrics_count_what_happened(serve: Start) -> None:
    server = serve()
    answers = [server.complete(max_tokens=n) for n in (20, 30)]
    page = server.client.get("/metrics").text
    values = dict(row.rsplit(" ", 1) for row in page.splitlines() if not row.startswith("#"))

    def value(name: str, **labels: str) -> float:
        named = {"engine": "0", "model_name": MODEL} | labels
        shown = ",".join(f'{key}="{text}"' for key, text in sorted(named.items()))
        return float(values[f"{name}{{{shown}}}"])

    for name in ("prefill", "decode", "inference"):
        assert value(f"vllm:request_{name}_time_seconds_count") == 2
    prefill, decode, whole = (
        value(f"vllm:request_{name}_time_seconds_sum") for name in ("prefill", "decode", "inference")
    )
    assert prefill > 0 and decode > 0 and prefill + decode == pytest.approx(whole)
    assert value("vllm:kv_cache_usage_perc") == 0
    told = [answer["metrics"]["speculative_decoding"] for answer in answers]
    assert value("vllm:generation_tokens_total") == 50 and value("vllm:prompt_tokens_total") == 4
    assert value("vllm:request_success_total", finished_reason="length") == 2
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    assert value("vllm:time_to_first_token_seconds_count") == 2
    for name, field in (("drafts", "num_spec_steps"), ("draft_tokens", "num_draft_tokens")):
        total = sum(one[field] for one in told)
        assert value(f"vllm:spec_decode_num_{name}_total") == total
        both = [value(f"draftwise:spec_decode_num_{name}_total", drafter=d) for d in ("good", "bad")]
        assert sum(both) == total
    accepted = sum(one["num_accepted_draft_tokens"] for one in told)
    assert value("vllm:spec_decode_num_accepted_tokens_total") == accepted
    assert value("draftwise:spec_decode_num_faults", drafter="good") == 0


def test_arms_that_clients_make_up_have_one_label(serve: Start) -> None:
    server = serve(clients_choose="everything")
    for k in range(3):
        policy = f"static-3?drafter=good&stop=confidence(0.{k}1)"
        server.complete(speculative={"policy": policy}, max_tokens=9)
    server.complete(max_tokens=9)
    page = server.client.get("/metrics").text
    labels = set(re.findall(r'num_rounds_total{arm="([^"]*)"', page))
    own = {arm.name for arm in server.decoder.loop.policy.arms}
    assert "other" in labels and labels <= {"other", "none", *own} and labels & own


def test_the_cache_is_used_by_the_texts_that_are_written(serve: Start) -> None:
    server = serve(batch=2)
    target: Any = server.decoder.loop.target
    target.held.set()
    with connected(server, asking(prompt="a" * 100)):
        until(target.taken.is_set)
        page = server.client.get("/metrics").text
        (used,) = [row for row in page.splitlines() if row.startswith("vllm:kv_cache_usage_perc{")]
        assert float(used.rsplit(" ", 1)[1]) == 100 / (2 * 400)
    target.release()


@pytest.mark.parametrize("seconds", [0.01, 3600.0])
def test_what_was_learnt_on_a_full_disk_is_saved_when_there_is_room_or_at_the_end(
    serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    from draftwise.state.file import StateFile

    decoder = simulated("ucb1")
    path, policy, tries = tmp_path / "state", decoder.loop.policy, list[int]()
    decoder.state = StateFile(path, policy, name="ucb1", target="t", drafters={})
    monkeypatch.setattr(engines, "SAVE_SECONDS", 0.01)

    def full(*_: Any) -> None:
        tries.append(1)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("draftwise.state.file._replace", full)
        with pytest.warns(DraftwiseWarning, match="No space left"):
            server = serve(decoder)
            assert server.complete()["choices"][0]["text"] == line("b", 20)
            until(lambda: len(tries) > 1)
        monkeypatch.setattr(engines, "SAVE_SECONDS", seconds)
        assert not path.exists()
    if seconds < 1:
        until(path.exists)  # without another text
    server.close()
    assert StateFile(path, policy, name="ucb1", target="t", drafters={}).load()


def test_a_save_has_what_is_to_be_learned_late(tmp_path: Path) -> None:
    """A text is open, and the pass in which the policy would learn from its last round has not begun."""
    from draftwise.state.file import StateFile

    decoder = simulated("ucb1", ThreadTarget(after(1), len(LETTERS), max_length=400))
    loop, path = decoder.loop, tmp_path / "state"
    decoder.state = StateFile(path, loop.policy, name="ucb1", target="t", drafters={})
    engine = Engine(decoder, Limits())
    loop.add([0], Sampling(max_new_tokens=50))
    loop.step()
    engine._unsaved = True
    engine._save(now=True)
    assert sum(json.loads(path.read_text())["numbers"]["shared"]["pulls"]) == 1.0
