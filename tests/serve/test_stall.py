"""What one long prompt does to the texts of others, in tokens that are read between two of their rounds."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise import Decoder, method
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.serve.engine import Engine
from draftwise.serve.limits import Limits
from draftwise.serve.texts import Wish
from draftwise.targets.hf import HFTarget
from tests import tiny
from tests.cli.conftest import Letters
from tests.tiny import COMMON, VOCAB

from .conftest import until
from .test_engine import Inbox

LENGTH = 4000
LEFT = 17  # tokens of a prompt that are read together with the pass of all


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two tiny models with a long window."""
    from transformers import LlamaConfig

    config = lambda: LlamaConfig(**COMMON | {"max_position_embeddings": 8192})  # noqa: E731
    monkeypatch.setitem(tiny.CONFIGS, "long", config)
    return tiny.model("long"), tiny.model("long", seed=1)


def test_between_two_rounds_of_a_text_one_piece_is_read(models: tuple[Any, Any]) -> None:
    made, small = models
    target, drafter = HFTarget(made), LMDrafter(small, VOCAB)
    events: list[tuple[str, int]] = []

    def watch(rows: Any, who: str) -> None:
        feed = rows.feed

        def fed(first: int, texts: Any, keep: int, **more: Any) -> Any:
            events.append((who, sum(map(len, texts))))
            return feed(first, texts, keep, **more)

        rows.feed = fed

    watch(target.rows, "target")
    watch(drafter.rows, "drafter")
    chosen = method("static-2", ["lm"])
    decoder = Decoder(target, {"lm": drafter}, chosen, Letters(), seed=1)
    engine, long, other = Engine(decoder, Limits(batch=2)), Inbox(), Inbox()
    engine.start()
    (text,) = engine.submit([Wish([5, 6, 7], Sampling(max_new_tokens=400))], other, 600)
    until(lambda: text.stats.rounds > 2)
    step, written = decoder.loop.step, text.stats.rounds

    def stepped(requests: Any = None) -> Any:
        events.append(("round", 0))
        return step(requests)

    decoder.loop.step = stepped  # type: ignore[method-assign]
    prompt = [3 + i % 19 for i in range(LENGTH)]
    engine.submit([Wish(prompt, Sampling(max_new_tokens=3))], long, 600)
    until(lambda: long.ends())
    rounds = text.stats.rounds - written
    engine.stop(seconds=0)
    engine.join()
    read = {who: sum(n for name, n in events if name == who) for who in ("target", "drafter")}
    assert min(read.values()) > LENGTH, "both models read all of it"
    assert rounds > 2 * (LENGTH // target.chunk), "the other text was written meanwhile"
    most, since = 0, 0
    for who, n in events:
        since = 0 if who == "round" else since + n
        most = max(most, since)
    # One piece of one model; and in the round itself the drafts of both texts, and their passes.
    assert target.chunk <= most <= target.chunk + 2 * (LEFT + 2 * 3)
