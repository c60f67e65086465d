"""What one long prompt does to the texts of others, in tokens that are read between two of their rounds."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise import Decoder, method
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.runner import PassInput
from draftwise.serve.engine import Engine
from draftwise.serve.generations import GenerationRequest
from draftwise.serve.limits import Limits
from draftwise.targets.hf import HFTarget
from tests.cli.conftest import Letters
from tests.tiny import VOCAB

from .conftest import running, until
from .test_engine import Inbox

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
        (text,) = engine.submit([GenerationRequest([5, 6, 7], Sampling(max_new_tokens=400))], other, 600)
        until(lambda: text.stats.rounds > 2)
        written, decoder.loop.step = text.stats.rounds, stepped  # type: ignore[method-assign]
        (asked,) = engine.submit([GenerationRequest(prompt, Sampling(max_new_tokens=80))], long, 600)
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
        (text,) = engine.submit([GenerationRequest([5, 6, 7], Sampling(max_new_tokens=400))], other, 600)
        until(lambda: text.stats.rounds > 2)
        engine.submit([GenerationRequest(one, Sampling(max_new_tokens=1)) for one in prompts], long, 600)
        until(lambda: len(long.ends()) == waiting)
    assert max(counts) == pieces and sum(counts) >= waiting * (LENGTH // (target.chunk + LEFT))
