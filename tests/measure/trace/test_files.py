"""A trace on disk: whole or not at all, refused in one line when it is damaged or another's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from draftwise.core.drafts import Draft, Job
from draftwise.errors import UserError
from draftwise.measure.trace import Trace
from draftwise.measure.trace.files import ABOUT, ARRAYS, file_of
from draftwise.measure.trace.record import Prompt, record
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from tests.measure.trace.sims import prompts, record_trace, recorded, settings, target, team


def same(a: Trace, b: Trace) -> None:
    assert a.header == b.header
    for one, other in zip(a, b, strict=True):
        assert all(getattr(one, key) == getattr(other, key) for key in ABOUT)
        assert np.array_equal(one.prompt, other.prompt) and np.array_equal(one.text, other.text)
        for name in a.drafters:
            for key in ARRAYS:
                mine, theirs = (getattr(r.drafts[name], key) for r in (one, other))
                assert np.array_equal(mine, theirs), (name, key)
            assert one.drafts[name].given == other.drafts[name].given


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_interrupted_recording_goes_on(
    temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere, the same command makes the same trace, with lookups that remember texts too."""
    sampling = settings(16, temperature=temperature, seed=4)
    whole = recorded(tmp_path / "whole", n=5, sampling=sampling)
    models, part = target(), tmp_path / "part"
    verify, left = models.verify, [60]

    def stops(batch: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return verify(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(models, "verify", stops)
    mine = prompts(5)
    header = whole.header
    for _ in range(50):
        left[0] = 60
        try:
            record(models, team(), mine, part, header)
            break
        except KeyboardInterrupt:
            with pytest.raises(UserError, match="of its 5 prompts: run the same `draftwise trace` again"):
                Trace(part)
            assert not list(part.glob("*.part"))
    same(whole, Trace(part))


def test_progress_begins_before_the_first_prompt(tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []
    header = recorded(tmp_path / "one", n=2).header
    record(target(), team(), prompts(2), tmp_path, header, progress=lambda *row: counts.append(row))
    assert counts == [(0, 2), (1, 2), (2, 2)]


def test_another_trace_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    recorded(tmp_path, n=2)
    with pytest.raises(UserError, match=r"holds a trace with length 8, not 4: choose another --out"):
        recorded(tmp_path, n=2, length=4)
    other = [Prompt("0", "c0", [1, 2]), Prompt("1", "c1", [3, 4])]
    with pytest.raises(UserError, match=r"holds a trace with digest .*: choose another --out"):
        recorded(tmp_path, asked=other)
    (tmp_path / "trace.json").unlink()
    with pytest.raises(UserError, match=r"or of another trace \(its prompt is another one"):
        recorded(tmp_path, asked=other)


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def foreign(path: Path) -> None:
    np.savez(path, a=np.zeros(3))


def swapped(path: Path) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    arrays["0.start"] = arrays["0.start"] + 10_000
    np.savez(path, **arrays)


def pickled(path: Path) -> None:
    np.savez(path, about=np.array([{"a": 1}], dtype=object))


def listed(path: Path) -> None:
    np.savez(path, about=np.frombuffer(b'"x"', dtype=np.uint8))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [spoil, foreign, swapped, pickled, listed, flipped])
def test_damaged_recordings_are_refused_in_one_line(harm: Callable[[Path], None], tmp_path: Path) -> None:
    trace = recorded(tmp_path, n=2)
    harm(file_of(tmp_path, 1))
    with pytest.raises(UserError, match=r"000001\.npz' is damaged or of another trace") as caught:
        list(trace)
    assert "\n" not in str(caught.value)


DAMAGE: list[tuple[str, object]] = [
    *(("prompts", value) for value in ("x", -1, 0, True, 1.0, 10**12, None)),
    *(("length", value) for value in ("x", 0, 4097)),
    *(("temperature", value) for value in ("x", -1.0, True)),
    *(("max_new_tokens", 0), ("vocab_size", -1), ("seed", "x"), ("overlap", 1), ("eos", ["x"]), ("eos", {})),
    *(("target", 7), ("workload", None), ("drafters", ["ngram"]), ("load", "x"), ("version", 2)),
    ("format", "x"),
]


def test_a_damaged_header_is_refused_in_one_line(tmp_path: Path) -> None:
    recorded(tmp_path, n=1)
    header = json.loads((tmp_path / "trace.json").read_text())
    without = {key: value for key, value in header.items() if key != "length"}
    damaged = [without, *(header | {key: value} for key, value in DAMAGE)]
    for text in ("", "[]", "{}", "\x00", *map(json.dumps, damaged)):
        (tmp_path / "trace.json").write_text(text)
        with pytest.raises(UserError, match=r"^cannot read the trace .*; record one with `draftwise trace"):
            Trace(tmp_path)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        Trace(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out"):
        recorded(tmp_path / "file" / "x", n=1)


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    models, sampling = target(), settings(8)
    with pytest.raises(UserError, match="--length 0: give 1 to 4096"):
        recorded(tmp_path / "a", length=0, n=1)
    with pytest.raises(UserError, match="record at --temperature 0"):
        hot = settings(8, temperature=1.0)
        record_trace(models, team(), prompts(1), tmp_path, hot, length=2, overlap=True)

    class Mute(SimDrafter):
        grade = None  # type: ignore[assignment]

        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            return [Draft.chain([1]) for _ in jobs]

    class Broken(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            raise RuntimeError("out of luck\nand of lines")

    cases = (
        (Broken(markov(np.eye(14))), r"failed \(RuntimeError: out of luck\)"),
        (Mute(markov(np.eye(14))), "carry no stop signals"),
        (SimDrafter(markov(np.eye(14)), sampled=True), "draws its tokens"),
    )
    for i, (drafter, said) in enumerate(cases):
        with pytest.raises(UserError, match=f"drafter odd.*{said}.*leave it out of --drafters"):
            record_trace(models, {"odd": drafter}, prompts(1), tmp_path / str(i), sampling, length=2)
