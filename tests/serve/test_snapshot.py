"""The state of the server in numbers: those of its texts, what its policy tells, and plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftwise.core.roles import Values
from draftwise.serve import live, metrics, snapshot
from draftwise.serve.limits import Limits
from draftwise.serve.service import Service
from draftwise.serve.snapshot import Reading, Snapshots

from .conftest import MODEL, Served, simulated

Start = Callable[..., Served]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FRESH_SECONDS", 0.0)


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
    monkeypatch.setattr(snapshot, "monotonic", lambda: clock[0])
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
