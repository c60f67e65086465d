"""llama.cpp as a peer, on tiny random models: every loop and every draft writes llama.cpp's own text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftwise import UserError
from draftwise.measure.bench import llamacpp as module
from draftwise.measure.bench.child import ChildError
from draftwise.measure.bench.llamacpp import Count, Drafter, Engine, ModelDraft, Reader, faster_flash, greedy
from draftwise.models.gguf.library import load
from tests.gguf import Plain, tiny
from tests.tiny import VOCAB

IDS = [19, 17, 9, 5, 11, 9, 18, 19, 17, 9, 5]
MODEL, OTHER = tiny(0, 2.0), tiny(1, 2.0)
NEW = 24


@pytest.fixture(scope="module")
def own() -> list[int]:
    return Plain(MODEL).write(IDS, NEW)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = reads(MODEL)
    yield made
    made.close()


def reads(path: str, *, flash: bool = False) -> Reader:
    return Reader(load(path), context=256, threads=1, flash=flash, cache="f32")


def write(reader: Reader, draft: Drafter | None, ids: Sequence[int] = IDS) -> tuple[list[int], Count]:
    count = Count()
    return list(greedy(reader, ids, NEW, draft, count)), count


def guess(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Nearly always wrong."""
    return np.array(Random(len(ids)).choices(range(VOCAB), k=5), np.int32)


def test_the_fast_loop_writes_llamacpps_own_text_whoever_drafts(reader: Reader, own: list[int]) -> None:
    """Nobody, nearly always wrong guesses, the model itself, and another model."""
    models = [ModelDraft(reads(path), length=4, confidence=0.0) for path in (MODEL, OTHER)]
    texts, works = zip(*(write(reader, draft) for draft in (None, guess, *models)), strict=True)
    assert list(texts) == [own] * 4
    plain, bad, right, other = works
    assert (plain.rounds, plain.drafted, plain.accepted) == (NEW, 0, 0)
    assert bad.drafted > 2 * NEW and bad.accepted < bad.drafted / 5
    assert right.accepted == right.drafted == NEW - right.rounds
    assert right.rounds == 1 + -(-(NEW - 1) // 5), "the prompt alone, then five tokens a pass"
    assert other.accepted < other.drafted


def test_confidence_shortens_drafts(reader: Reader, own: list[int]) -> None:
    drafted = []
    for confidence in (0.0, 0.1, 1.0):
        text, work = write(reader, ModelDraft(reads(tiny(1)), length=4, confidence=confidence))
        assert text == own
        drafted.append(work.drafted)
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_the_draft_model_reads_only_what_is_new() -> None:
    draft = ModelDraft(reads(MODEL), length=3, confidence=0.0)
    read: list[int] = []
    real = draft.reader.read

    def noted(tokens: Sequence[int], rows: int = 1) -> Any:
        read.extend(tokens)
        return real(tokens, rows)

    draft.reader.read = noted  # type: ignore[method-assign]
    first = draft(np.array(IDS, np.int32)).tolist()
    assert read == [*IDS, *first[:2]]
    read.clear()
    draft(np.array([*IDS, *first, 7], np.int32))
    assert read[:2] == [first[2], 7], "all of its draft was right"
    read.clear()
    draft(np.array([*IDS, first[0], 8], np.int32))
    assert read[0] == 8 and len(read) == 3, "the rest of its draft was wrong"


def test_a_prompt_longer_than_a_batch(reader: Reader) -> None:
    long = Random(3).choices(range(VOCAB), k=700)
    wide = Reader(load(MODEL), context=1024, threads=1, flash=False, cache="f32")
    assert write(wide, guess, long)[0] == Plain(MODEL).write(long, NEW)


def test_a_full_context_is_an_error(reader: Reader) -> None:
    with pytest.raises(ChildError, match="llama_decode returned 1 at position"):
        write(reader, None, [3] * 250)
    assert len(write(reader, None)[0]) == NEW, "the next text is written"


@pytest.mark.parametrize("loop", ["fast", "library"])
@pytest.mark.parametrize("mode", ["plain", "lookup", "draft"])
def test_every_mode_in_either_loop(mode: str, loop: str, own: list[int]) -> None:
    asked: dict[str, Any] = {"file": MODEL, "context": 256, "threads": 1, "gpu_layers": 0}
    asked |= {"flash": "auto", "loop": loop, "cache": "f32"}
    asked |= {"lookup": 6, "ngram": 2} if mode == "lookup" else {}
    asked |= {"draft": MODEL, "length": 3, "confidence": 0.0} if mode == "draft" else {}
    engine = Engine(asked)
    assert engine.settings()["flash_attention"] is False
    say = {"ids": IDS, "max_new_tokens": NEW, "temperature": 0.0, "seed": 1, "eos": []}
    for _ in range(2):
        told = engine.write(say)
        assert told["tokens"] == own and told["seconds"] > told["ttft_s"] > 0.0
        assert (told["drafted"] == 0) is (mode == "plain")
        assert (told["rounds"] == NEW) is (mode == "plain")
    short = engine.write(say | {"eos": [own[3]]})
    assert short["tokens"] == own[: own.index(own[3]) + 1]
    drawn = [engine.write(say | {"temperature": 1.0, "seed": seed})["tokens"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_kind_of_attention_is_taken(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which each text with flash attention takes one second, or three, where others take two."""
    steps = count()
    now = [0.0]

    def clock() -> float:
        step = next(steps)
        if step % 2:
            now[0] += (1.0 if faster else 3.0) if step % 4 == 3 else 2.0
        return now[0]

    monkeypatch.setattr(module, "perf_counter", clock)
    assert faster_flash(MODEL, context=256, threads=1, cache="f16") is faster


def test_attention_is_timed_where_the_model_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def load(file: str, **params: Any) -> Any:
        asked.append(params)
        raise UserError("seen")

    monkeypatch.setattr("draftwise.measure.bench.llamacpp.library.load", load)
    with pytest.raises(UserError, match="seen"):
        Engine({"file": MODEL, "context": 9, "threads": 1, "gpu_layers": 7, "flash": "auto", "cache": "f16"})
    assert asked == [{"n_gpu_layers": 7}]


def test_a_file_that_is_none() -> None:
    with pytest.raises(UserError, match="does not exist"):
        faster_flash("none.gguf", context=256, threads=1, cache="f16")
