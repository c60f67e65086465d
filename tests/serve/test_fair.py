"""What the requests of one client may take from those of others: rows, prefills, and seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftwise import Decoder, method
from draftwise.core.arms import Arm
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import UserError
from draftwise.models.runner import PassInput
from draftwise.serve.bodies import Completion
from draftwise.serve.engine import Engine
from draftwise.serve.errors import APIError
from draftwise.serve.generations import (
    PLAIN_EVERY,
    SLOWDOWN,
    Client,
    DraftLimit,
    Generation,
    GenerationRequest,
    give_row,
)
from draftwise.serve.limits import Limits
from draftwise.serve.requests import RequestParser
from draftwise.targets.hf import HFTarget
from tests.cli.conftest import Letters
from tests.tiny import VOCAB

from .conftest import MODEL, Served, running, simulated, until
from .test_engine import Inbox, wishes

LONG = 1000  # tokens of a prompt


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts may come before the thread starts, so that all of them are there in its first step."""
    monkeypatch.setattr(Engine, "is_ready", True)


def texts(address: str, request: int, n: int, user: str = "") -> list[Generation]:
    """The texts of a request."""
    return [Generation(wishes()[0], k, Inbox(), 0.0, (address, user, request)) for k in range(n)]


def shared_out(running: list[Generation], waiting: list[Generation], batch: int) -> list[int]:
    """Share out the rows; return the request of each of them."""
    while (text := give_row(running, waiting, batch)) is not None:
        if text in waiting:
            waiting.remove(text)
            running.append(text)
    return sorted(text.owner[2] for text in running if not text.is_paused)


def test_rows_are_shared_out_by_address_then_by_user_and_by_request() -> None:
    running: list[Generation] = []
    waiting = texts("a", 0, 8)
    assert shared_out(running, waiting, 4) == [0, 0, 0, 0], "nobody else asks"
    waiting += texts("a", 1, 1)
    assert shared_out(running, waiting, 4) == [0, 0, 0, 1], "its own next request does not wait for all of it"
    waiting += texts("b", 2, 4)
    assert shared_out(running, waiting, 4) == [0, 1, 2, 2]
    waiting += texts("b", 3, 1, "x") + texts("b", 4, 1, "y")
    assert shared_out(running, waiting, 4) == [0, 1, 2, 3], "naming users gains an address nothing"
    waiting += texts("c", 5, 1)
    assert shared_out(running, waiting, 4) == [0, 1, 2, 3] and len(running) == 8, "that many may be open"
    running = [text for text in running if text.owner[0] == "a"]
    assert shared_out(running, waiting, 4)[-1] == 5, "a paused one goes on where there is a row"
    running = [text for text in running if text.owner[2] == 0]
    assert shared_out(running, [], 4) == [0] * 4


def test_one_client_does_not_fill_the_queue() -> None:
    engine = Engine(simulated(), Limits(batch=2, queue=16))
    engine.submit(wishes(16), Inbox(), Client("a", "x"))
    with pytest.raises(APIError) as refused:
        engine.submit(wishes(1), Inbox(), Client("a", "y"))
    assert refused.value.status == 429
    engine.submit(wishes(2), Inbox(), Client("b"))
    with pytest.raises(APIError):
        engine.submit(wishes(1), Inbox(), Client("c"))


def test_a_short_request_waits_for_no_long_prompts(long_models: tuple[Any, Any]) -> None:
    """One request of three long prompts has all rows; a short one begins after two more pieces of them."""
    made, _ = long_models
    target = HFTarget(made)
    engine = Engine(Decoder(target, {}, method("none", []), Letters(), seed=1), Limits(batch=2))
    long, short, reads, first = Inbox(), Inbox(), [0], []
    read = target.read

    def reading(request: Any, others: Any) -> bool:
        reads[0] += 1
        if reads[0] == 5:
            engine.submit([GenerationRequest([5, 6, 7] * 10, Sampling(max_new_tokens=8))], arrived)
        return read(request, others)

    def arrived(event: Any) -> None:
        first.append(reads[0])
        short(event)

    target.read = reading  # type: ignore[method-assign]
    prompts = [[3 + (i + k) % 19 for i in range(LONG)] for k in range(3)]
    engine.submit([GenerationRequest(prompt, Sampling(max_new_tokens=4)) for prompt in prompts], long)
    with running(engine):
        until(lambda: len(long.ends()) == 3 and short.ends())
    assert first[0] <= 5 + 3 and reads[0] > 3 * LONG // (target.piece + 17)
    assert first[-1] <= first[0] + 2 * 8, "one piece, or two, between its tokens"
    assert short.text() == alone(made, [5, 6, 7] * 10, 8)
    for k, prompt in enumerate(prompts):
        assert long.text(k) == alone(made, prompt, 4), "the one whose row it had went on as if nothing was"


def test_drafts_that_a_client_chose_take_little_of_the_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes one second and an eighth for each drafted token: two tokens are a quarter."""
    now, widths = [0.0], list[int]()
    monkeypatch.setattr("draftwise.serve.engine.perf_counter", lambda: now[0])
    decoder = simulated("none")
    target, verify = decoder.loop.target, decoder.loop.target.verify

    def counted(batch: Any) -> Any:
        widths.append(max(len(draft.tokens) for _, draft in batch))
        now[0] += 1.0 + widths[-1] / 8
        return verify(batch)

    target.verify = counted  # type: ignore[method-assign]
    engine, other, chosen = Engine(decoder, Limits(batch=2)), Inbox(), Inbox()
    wish = GenerationRequest([0, 1], Sampling(max_new_tokens=380), arm=Arm("bad", 16))
    engine.submit([wish], chosen)
    engine.submit(wishes(tokens=100), other)
    with running(engine):
        until(lambda: chosen.ends())
    beside, apart = widths[1:101], widths[101:]  # the first step begins before the other text
    assert max(beside) == 3 and beside.count(3) <= 34, "it tries a longer one, and goes back"
    assert sum(1.0 + width / 8 for width in beside) < SLOWDOWN * 100
    assert beside.count(0) == 100 // PLAIN_EVERY + 1 and beside.count(2) > 25
    assert min(apart[:-20]) == 16, "alone it has what it asked for"


def test_drafts_that_never_fit_are_tried_once_in_sixteen_steps() -> None:
    limit, ten = DraftLimit(), texts("a", 0, 1) + texts("a", 1, 1)
    ten[0].spec = GenerationRequest([0], Sampling(), arm=Arm("slow", 4))
    found = []
    for _ in range(10 * PLAIN_EVERY):
        found.append(limit.apply(ten))
        limit.add(found[-1], 10.0 if found[-1] else 1.0)
    assert found.count(1) == 10 and found.count(0) == 10 * (PLAIN_EVERY - 1)


POLICY, FEWER = {"policy": "static-4?drafter=good"}, {"max_length": 2, "drafters": ["good"]}


@pytest.mark.parametrize(
    ("choice", "taken", "refused"),
    [
        ("nothing", [None, True], [False, FEWER, POLICY]),
        ("bounds", [None, True, False, FEWER, {"policy": "none"}], [POLICY]),
        ("everything", [False, FEWER, POLICY], [{"policy": "auto"}]),
    ],
)
def test_the_server_says_what_clients_may_choose(choice: str, taken: list[Any], refused: list[Any]) -> None:
    reader = RequestParser(simulated(), Limits(clients_choose=choice))
    body = {"model": MODEL, "prompt": "ab"}
    for speculative in taken:
        reader.parse_completion(Completion.model_validate(body | {"speculative": speculative}))
    for speculative in refused:
        with pytest.raises(APIError, match=r"^speculative.*(--clients-choose|a policy that learns)"):
            reader.parse_completion(Completion.model_validate(body | {"speculative": speculative}))
    with pytest.raises(UserError, match="nothing, bounds, everything"):
        Limits(clients_choose="some")


def test_a_client_is_an_address_and_the_user_that_it_names(serve: Callable[..., Served]) -> None:
    server, clients = serve(), list[Client]()
    submit = server.engine.submit

    def submitted(wishes: Any, sink: Any, client: Client) -> list[Generation]:
        clients.append(client)
        return submit(wishes, sink, client)

    server.engine.submit = submitted  # type: ignore[assignment, method-assign]
    server.complete(max_tokens=1)
    server.complete(max_tokens=1, user="x")
    server.ask("/v1/responses", input="ab", max_output_tokens=1, user="x", safety_identifier="y")
    proxied = {"model": MODEL, "prompt": "ab", "max_tokens": 1, "user": "z"}
    server.client.post("/v1/completions", json=proxied, headers={"x-forwarded-for": "192.0.2.7"})
    assert clients == [("127.0.0.1", ""), ("127.0.0.1", "x"), ("127.0.0.1", "y"), ("192.0.2.7", "z")]


# -- one long prompt: tokens that are read between two rounds of others ----------------------------------

LENGTH = 2500
LEFT = 17  # tokens of a prompt that are read together with the pass of all


class Clock:
    """Seconds that are tokens: a piece takes one for each of its tokens, and a round `round` more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, round: int = 0) -> None:
        self.now, self.round = 0, round
        monkeypatch.setattr("draftwise.serve.engine.perf_counter", lambda: float(self.now))


def alone(made: Any, prompt: list[int], n: int) -> str:
    """The text of plain decoding."""
    decoder = Decoder(HFTarget(made), {}, method("none", []), Letters(), seed=1)
    return decoder.generate(prompt, max_new_tokens=n).text


def test_between_two_rounds_of_a_text_one_piece_is_read(
    long_models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, small = long_models
    clock = Clock(monkeypatch)
    target, drafter = HFTarget(made), LMDrafter(small, VOCAB)
    events: list[tuple[str, int]] = []

    def watch(rows: Any, who: str) -> None:
        forward = rows.forward

        def fed(given: PassInput) -> Any:
            events.append((who, sum(map(len, given.tokens))))
            clock.now += events[-1][1]
            return forward(given)

        rows.forward = fed

    watch(target.runner, "target")
    watch(drafter.runner, "drafter")
    chosen = method("static-2", ["lm"])
    decoder = Decoder(target, {"lm": drafter}, chosen, Letters(), seed=1)
    engine, long, other = Engine(decoder, Limits(batch=2)), Inbox(), Inbox()
    step, prompt = decoder.loop.step, [3 + i % 19 for i in range(LENGTH)]

    def stepped(requests: Any = None) -> Any:
        events.append(("round", 0))
        return step(requests)

    with running(engine):
        (text,) = engine.submit([GenerationRequest([5, 6, 7], Sampling(max_new_tokens=400))], other)
        until(lambda: text.stats.rounds > 2)
        written, decoder.loop.step = text.stats.rounds, stepped  # type: ignore[method-assign]
        (asked,) = engine.submit([GenerationRequest(prompt, Sampling(max_new_tokens=80))], long)
        until(lambda: long.ends())
        rounds = text.stats.rounds - written
    read = {who: sum(n for name, n in events if name == who) for who in ("target", "drafter")}
    assert min(read.values()) > LENGTH, "both models read all of it"
    assert rounds > 2 * (LENGTH // target.piece), "the other text was written meanwhile"
    most, since = 0, 0
    for who, n in events:
        since = 0 if who == "round" else since + n
        most = max(most, since)
    # A piece of the target and one of the drafter; in the round the drafts of both texts, and their passes.
    assert target.piece <= most <= target.piece + drafter.chunk + 2 * (LEFT + 2 * 3)
    reads = [k for k, (who, n) in enumerate(events) if who == "drafter" and n == drafter.chunk]
    ends = max(k for k, (who, n) in enumerate(events) if who == "target" and n == target.piece)
    assert reads[-1] > ends, "it was written before its drafter had read it"
    assert asked.stats.drafted and long.text() == alone(long_models[0], prompt, 80), "then it was drafted for"


@pytest.mark.parametrize(("waiting", "pieces"), [(1, 2), (3, 4)])
def test_reading_has_its_part_of_the_time(
    long_models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, waiting: int, pieces: int
) -> None:
    """A round takes as long as two pieces: the more texts wait, the more is read between two, to a bound."""
    target = HFTarget(long_models[0])
    clock = Clock(monkeypatch, 2 * target.chunk)
    monkeypatch.setattr("draftwise.serve.engine.PREFILL_SECONDS", 4 * target.chunk)
    decoder = Decoder(target, {}, method("none", []), Letters(), seed=1)
    engine, long, other = Engine(decoder, Limits(batch=8)), Inbox(), Inbox()
    read, step, counts = target.read, decoder.loop.step, [0]

    def reading(request: Any, others: Any) -> bool:
        clock.now += target.chunk
        counts[-1] += 1
        return read(request, others)

    def stepped(requests: Any = None) -> Any:
        clock.now += clock.round
        counts.append(0)
        return step(requests)

    target.read, decoder.loop.step = reading, stepped  # type: ignore[method-assign]
    prompts = [[3 + (i + k) % 19 for i in range(LENGTH)] for k in range(waiting)]
    with running(engine):
        (text,) = engine.submit([GenerationRequest([5, 6, 7], Sampling(max_new_tokens=400))], other)
        until(lambda: text.stats.rounds > 2)
        engine.submit([GenerationRequest(one, Sampling(max_new_tokens=1)) for one in prompts], long)
        until(lambda: len(long.ends()) == waiting)
    assert max(counts) == pieces and sum(counts) >= waiting * (LENGTH // (target.chunk + LEFT))
