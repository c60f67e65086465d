"""The live page and its data: what is told to whom, how much of it, and what it costs while none looks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

import pytest

from draftwise.core.arms import Arm, Decision
from draftwise.core.roles import Values
from draftwise.core.round import Round, Seconds
from draftwise.generation.text import Piece
from draftwise.serve import live, metrics
from draftwise.serve.answers import ChatAnswer
from draftwise.serve.bodies import Chat
from draftwise.serve.errors import APIError
from draftwise.serve.generations import Event
from draftwise.serve.limits import Limits
from draftwise.serve.live import Reading, RoundLog, Snapshots, check_origin, page_files
from draftwise.serve.requests import ParsedRequest
from draftwise.serve.service import Exchange, Service
from draftwise.serve.tools import AnswerPart, Parser

from .conftest import MODEL, Served, connected, line, simulated, until
from .test_routes import events

Start = Callable[..., Served]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FRAME_SECONDS", 0.01)
    monkeypatch.setattr(live, "FRESH_SECONDS", 0.0)


@contextmanager
def watching(server: Served) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames that one client sees."""
    with server.client.stream("GET", "/live") as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        rows = answer.iter_lines()
        yield (json.loads(row[6:]) for row in rows if row.startswith("data: "))


def strips(server: Served) -> list[Any]:
    return [one for one in server.engine.observers if isinstance(one, RoundLog)]


# -- the files -------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_its_own_files(server: Served) -> None:
    pages = page_files()
    for address, (kind, content) in pages.items():
        answer = server.client.get(address)
        assert (answer.headers["content-type"], answer.content) == (kind, content)
        rules = answer.headers["content-security-policy"]
        assert rules.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in rules and "*" not in rules and "set-cookie" not in answer.headers
    html = pages["/"][1].decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?:", html)
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="(page/[^"]+)"', html)}
    for address, (_, content) in pages.items():
        if address.endswith(".js"):
            named |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', content.decode())}
    assert named == {address for address in pages if address != "/"}


def test_only_the_files_themselves_are_served(server: Served) -> None:
    for path in ("/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/uPlot.LICENSE"):
        assert server.client.get(path).status_code == 404, path


def test_with_a_key_the_page_opens_and_its_data_do_not(serve: Start) -> None:
    server = serve(key="secret")
    assert server.client.get("/stats").status_code == 200
    server.client.headers.pop("authorization")
    for path in page_files():
        assert server.client.get(path).status_code == 200
    for path in ("/stats", "/live"):
        assert server.client.get(path).status_code == 401


# -- what it costs ---------------------------------------------------------------------------------------


def test_while_none_looks_the_engine_does_nothing_for_the_page(serve: Start) -> None:
    server = serve()
    before = list(server.engine.observers)
    server.complete(max_tokens=30)
    assert server.engine.observers == before
    with watching(server) as frames:
        next(frames)
        (mine,) = strips(server)
        server.complete(max_tokens=30)
        until(lambda: mine.added)
    until(lambda: server.engine.observers == before)
    seen = mine.added
    server.complete(max_tokens=30)
    assert mine.added == seen


def test_many_who_ask_at_once_get_one_state(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FRESH_SECONDS", 3600.0)
    server, numbers = serve(), count(1)
    monkeypatch.setattr(Snapshots, "take", lambda *_: {"number": next(numbers)})
    assert [server.client.get("/stats").json()["number"] for _ in range(5)] == [1] * 5


def test_one_state_at_a_time_is_made_also_where_who_asked_leaves(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, asked, entered, free, state = serve(), list[int](), list[int](), Flag(), live.Live.state

    async def counted(self: live.Live) -> Any:
        asked.append(1)
        return await state(self)

    def take(*_: Any) -> Any:
        entered.append(1)
        assert free.wait(60)
        return {}

    monkeypatch.setattr(live.Live, "state", counted)
    monkeypatch.setattr(Snapshots, "take", take)
    with connected(server, b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"):
        until(lambda: entered and strips(server))
    until(lambda: not strips(server))  # it has left
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.client.get, "/stats")
        until(lambda: len(asked) == 2)
        assert server.client.get("/health").status_code == 200 and len(entered) == 1
        free.set()
        assert answer.result().json() == {"watchers": 0}


def test_rounds_that_are_too_many_to_keep_are_lost_and_counted(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwise.serve.live.MAX_ROUNDS", 5)
    server = serve()
    kept = RoundLog(server.engine)
    server.engine.observers = [kept]
    server.complete(max_tokens=40, speculative=False)
    until(lambda: kept.added == 41)
    rows, lost, number = kept.rows_since(2)
    assert (len(rows), lost, number) == (5, 34, 41)
    assert kept.rows_since(39) == (rows[-2:], 0, 41) and kept.rows_since(41) == ([], 0, 41)


def test_a_server_that_stops_ends_every_stream(serve: Start) -> None:
    server = serve()
    with watching(server) as frames:
        next(frames)
        server.engine.stop(seconds=0)
        assert len(list(frames)) < 1000
    until(lambda: not strips(server))
    refused = server.client.get("/live")
    assert refused.status_code == 503 and "stopping" in refused.text


def test_pages_of_other_sites_may_not_watch() -> None:
    def asked(*, origins: Sequence[str] = (), **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        check_origin({"host": "127.0.0.1:8000"} | named, origins)

    asked()  # no browser
    asked(sec_fetch_site="same-origin")
    asked(sec_fetch_site="none")
    asked(origin="http://127.0.0.1:8000")
    other = "http://localhost:3000"
    asked(origin=other, sec_fetch_site="same-site", origins=[other])
    asked(origin=other, origins=["*"])
    for headers in (
        {"sec_fetch_site": "cross-site"},  # a picture whose address is /live
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "origin": other},
        {"origin": other},
        {"origin": "null"},
        {"origin": "http://[no"},
    ):
        with pytest.raises(APIError, match="--allow-origin"):
            asked(**headers)


def test_an_allowed_origin_may_end_with_a_slash(serve: Start) -> None:
    server = serve(origins=["http://localhost:3000/"])
    answer = server.client.get("/health", headers={"origin": "http://localhost:3000"})
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_a_page_of_another_site_gets_no_stream(server: Served) -> None:
    refused = server.client.get("/live", headers={"sec-fetch-site": "cross-site"})
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "foreign_origin"


def test_only_so_many_may_watch(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 2)
    server = serve()
    with watching(server) as one, watching(server) as other:
        next(one)
        assert any(frame["watchers"] == 2 for frame in other)
        refused = server.client.get("/live")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "10"
        assert refused.json()["error"]["code"] == "too_many_watchers"
        assert server.client.get("/stats").json()["watchers"] == 2
    until(lambda: server.client.get("/stats").json()["watchers"] == 0)
    with watching(server) as again:
        next(again)


# -- what it tells ---------------------------------------------------------------------------------------


def test_strips_say_who_guessed_each_token_and_no_text(serve: Start) -> None:
    server = serve()
    with watching(server) as frames:
        next(frames)
        answer = server.complete("xyzab", max_tokens=40)
        rounds, told = list[Any](), ""
        while not (rounds and rounds[-1][5]):
            frame = next(frames)
            rounds, told = rounds + frame["rounds"], told + json.dumps(frame)
    assert sum(guessed + own for _, _, _, guessed, own, _ in rounds) == 40
    guessed = {name: sum(r[3] for r in rounds if r[1] == name) for name in ("good", "bad")}
    counted = answer["metrics"]["draftwise"]["tokens_by_drafter"]
    assert {name: n for name, n in guessed.items() if n} == {
        k: v for k, v in counted.items() if k != "target"
    }
    assert guessed["good"] > 10
    assert "xyzab" not in told and line("b", 6) not in told


def test_plain_decoding_is_measured_where_the_policy_does_not_know_it(serve: Start) -> None:
    server = serve()
    with watching(server) as frames:
        assert next(frames)["speed"]["plain_from"] is None
        server.complete(max_tokens=30, speculative=False)
        speed = next(frame["speed"] for frame in frames if frame["speed"]["plain_from"])
    assert speed["plain_from"] == "measured" and speed["plain_tokens_per_second"] > 0


def test_a_plain_step_is_one_in_which_no_text_has_a_draft() -> None:
    """Steps of two texts with given seconds: the first reads prompts, the last is not over yet."""
    engine: Any = SimpleNamespace(steps=0)
    kept = RoundLog(engine)
    for rounds, drafted, seconds in ((1, 0, 9.0), (2, 0, 0.2), (3, 4, 7.0), (4, 0, 0.2), (5, 0, 5.0)):
        engine.steps += 1
        for request in (0, 1):
            text: Any = SimpleNamespace(stats=SimpleNamespace(rounds=rounds))
            n = drafted * request
            done = Round(request, Decision(0), Arm("a", n), n, n, (7,), 0, Seconds(verify=seconds), False)
            kept.add_round(text, done, 0.0)
    assert kept.plain_rate(2) == kept.plain_rate(9) == pytest.approx(4 / 0.8, rel=0.03)


# -- a prompt of one's own -------------------------------------------------------------------------------


def test_a_stream_can_say_who_guessed_each_piece(server: Served) -> None:
    asked: dict[str, Any] = {"stream_options": {"include_drafters": True}, "max_tokens": 40}
    said = {"messages": [{"role": "user", "content": "ab"}]}
    for path, body in (("/v1/completions", {"prompt": "ab"}), ("/v1/chat/completions", said)):

        def pieces(body: Any, path: str = path) -> list[Any]:
            chunks = events(server, path, **body)
            return [piece for chunk in chunks for piece in chunk.get("draftwise", {}).get("pieces", [])]

        found, plain = pieces(body | asked), pieces(body | asked | {"speculative": False})
        assert "".join(text for _, text in found) == "".join(text for _, text in plain) == line("b", 40)
        assert {source for source, _ in found} == {"good", "target"}
        assert {source for source, _ in plain} == {"target"} and pieces(body) == []


class Holding(Parser):
    """Gives a text out at its end, as what may be a call."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
        self.text += text
        return [AnswerPart(self.text)] if last else []


def test_pieces_come_with_the_chunk_that_has_their_text() -> None:
    asked: Any = {"stream": True, "n": 2, "stream_options": {"include_drafters": True}}
    body = Chat.model_validate({"messages": [{"role": "user", "content": "a"}]} | asked)
    own: Any = {"spec": SimpleNamespace(prompt=[0]), "stats": SimpleNamespace(tokens=2), "cached_tokens": 0}
    sequences: Any = [SimpleNamespace(index=k, **own) for k in (0, 1)]
    names: Any = None  # no log-probability is asked for
    answer = ChatAnswer(ParsedRequest(body, sequences, make_parser=Holding), sequences, MODEL, names)
    given = [Event(k, [Piece(f"{k}", "good")], finish_reason=end) for end in ("", "stop") for k in (0, 1)]

    async def streamed() -> list[Any]:
        exchange = Exchange(answer, {}, asyncio.Queue())
        for event in given[1:]:
            exchange.events.put_nowait(event)
        rows = [row async for row in exchange.stream(given[0])]
        return [json.loads(row.removeprefix("data: ")) for row in rows[:-1]]

    told = [
        (chunk["choices"][0]["index"], chunk["draftwise"]["pieces"])
        for chunk in asyncio.run(streamed())
        if "draftwise" in chunk
    ]
    assert told == [(k, [["good", f"{k}"]] * 2) for k in (0, 1)]


# -- the numbers of the server ---------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_texts(serve: Start) -> None:
    server = serve(batch=3, queue=5)
    made = [server.complete("xab", max_tokens=n)["metrics"] for n in (10, 25)]
    drafted = [one["speculative_decoding"] for one in made]
    told = server.client.get("/stats").json()
    assert (told["model"], told["tokens"], told["prompt_tokens"], told["window"]) == (MODEL, 35, 6, 400)
    assert told["requests"] == {"running": 0, "waiting": 0, "batch": 3, "queue": 5, "ended": {"length": 2}}
    drafters = told["drafters"]
    assert set(drafters) == {"good", "bad"}
    for name, key in (("drafted", "num_draft_tokens"), ("accepted", "num_accepted_draft_tokens")):
        assert sum(one[name] for one in drafters.values()) == sum(one[key] for one in drafted) > 0
    for one in drafters.values():
        assert one["recent"] == {key: one[key] for key in ("drafted", "accepted")}
    assert sum(arm["rounds"] for arm in told["arms"]) == sum(one["draftwise"]["rounds"] for one in made)
    assert told["speed"]["tokens_per_second"] > 0 and told["speed"]["together"] == 1.0
    assert told["speed"]["plain_from"] is None  # no such round was seen, and this policy does not know


@pytest.mark.parametrize("policy", ["auto", "ucb1", "tapout-token-ucb1"])
def test_each_policy_tells_what_it_has(serve: Start, policy: str) -> None:
    server = serve(simulated(policy))
    for _ in range(4):
        server.complete("abcabcabc", max_tokens=40)
    told = server.client.get("/stats").json()
    values = {arm["arm"]: arm["value"] for arm in told["arms"]}
    if policy.startswith("tapout"):
        assert told["unit"] is None and not any(values.values())
        return
    assert told["unit"] and any(value is not None for value in values.values())
    if policy == "auto":
        assert told["speed"]["plain_from"] == "learnt" and values["none"] == 0.0
        assert all(rate > 0 for rate in told["price"].values()) and told["price"]
        tested = [row for rows in told["matches"].values() for row in rows.values()]
        assert tested and all(0 <= row["accepted"] <= row["tested"] for row in tested)
        timed = [arm["seconds"] for arm in told["arms"] if arm["seconds"]]
        assert timed and min(timed) > 0


class Failing:
    """Some policy whose display is broken."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def values(self, batch: int = 1) -> Values:
        raise ValueError("no idea")


def test_a_display_that_fails_is_a_warning(serve: Start, caplog: pytest.LogCaptureFixture) -> None:
    decoder = simulated()
    decoder.loop.policy = Failing(decoder.loop.policy)
    server = serve(decoder)
    for _ in range(2):
        assert server.client.get("/stats").json()["unit"] is None
    assert [record.message for record in caplog.records if "no idea" in record.message] != []
    assert sum("no idea" in record.message for record in caplog.records) == 1


def test_speeds_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Service(simulated(), MODEL, Limits())
    shots, clock = Snapshots(made.engine, made.metrics, {}), [0.0]
    shots.readings[0] = Reading(0.0)
    monkeypatch.setattr(live, "monotonic", lambda: clock[0])
    told = Values("", (), plain=2 / 50)
    monkeypatch.setattr(shots, "_values", lambda batch: told if batch == 2 else Values("", ()))
    counters, labels = made.metrics.counters, made.metrics.labels
    for seconds in (1.0, 1.0, 3.0, 0.0):
        clock[0] += 1.0
        counters["vllm:generation_tokens"].labels(*labels).inc(30 * seconds)
        counters["draftwise:phase_seconds"].labels(*labels, "verify").inc(seconds)
        counters["draftwise:spec_decode_num_rounds"].labels(*labels, "none").inc(2)
        made.engine.steps += 1
        speed = shots.take()["speed"]
        assert (speed["decoding_tokens_per_second"], speed["together"]) == (30.0, 2.0)
        assert (speed["plain_tokens_per_second"], speed["plain_from"]) == (50.0, "learnt")
    assert (speed["over_seconds"], speed["tokens_per_second"]) == (4.0, 37.5)
    clock[0] = 60.0
    assert shots.take()["speed"]["over_seconds"] == 56.0


def test_acceptance_is_that_of_the_last_minutes(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clock = serve(), [1000.0]
    monkeypatch.setattr(metrics, "monotonic", lambda: clock[0])

    def recent() -> dict[str, int]:
        drafters = server.client.get("/stats").json()["drafters"].values()
        return {key: sum(one["recent"][key] for one in drafters) for key in ("drafted", "accepted")}

    server.complete(max_tokens=20)
    first = recent()
    clock[0] += 200.0
    server.complete(max_tokens=20)
    both = recent()
    assert both["drafted"] > first["drafted"] > 0
    clock[0] += 150.0
    assert recent() == {key: both[key] - first[key] for key in both}
    clock[0] += 1000.0
    assert recent() == {"drafted": 0, "accepted": 0}
