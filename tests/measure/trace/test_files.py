"""A trace on disk: whole or not at all, refused in one line when it is damaged or another's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise.core.drafts import Draft, Job
from draftwise.core.roles import Drafter
from draftwise.errors import UserError
from draftwise.measure.trace import Trace
from draftwise.measure.trace.files import ARRAYS, file_of
from draftwise.measure.trace.record import Prompt, header_of, record
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from tests.measure.trace.sims import prompts, recorded, settings, target, team


def same(a: Trace, b: Trace) -> None:
    assert a.header == b.header
    for one, other in zip(a, b, strict=True):
        assert (one.name, one.category, one.committed, one.given) == (
            other.name,
            other.category,
            other.committed,
            other.given,
        )
        assert np.array_equal(one.prompt, other.prompt) and np.array_equal(one.text, other.text)
        for name in a.drafters:
            for key in ARRAYS:
                mine, theirs = (getattr(r.drafts[name], key) for r in (one, other))
                assert np.array_equal(mine, theirs), (name, key)


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
            record(models, team(), mine, part, header, sampling)
            break
        except KeyboardInterrupt:
            with pytest.raises(UserError, match="of its 5 prompts: run the same `draftwise trace` again"):
                Trace(part)
            assert not list(part.glob("*.part"))
    same(whole, Trace(part))


def test_another_trace_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    recorded(tmp_path, n=2)
    with pytest.raises(UserError, match=r"holds a trace with length 8, not 4: choose another --out"):
        recorded(tmp_path, n=2, length=4)
    other = [Prompt("0", "c0", [1, 2]), Prompt("1", "c1", [3, 4])]
    with pytest.raises(UserError, match=r"holds a trace with digest .*: choose another --out"):
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


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [spoil, foreign, swapped, pickled, flipped])
def test_damaged_recordings_are_refused_in_one_line(harm: Callable[[Path], None], tmp_path: Path) -> None:
    trace = recorded(tmp_path, n=2)
    harm(file_of(tmp_path, 1))
    with pytest.raises(UserError, match=r"000001\.npz' is damaged or of another trace") as caught:
        list(trace)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "draftwise-trace", "version": 2}', "\x00", '{"format": "x"}']
)
def test_headers_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UserError, match=r"^cannot read the trace .*; record one with `draftwise trace"):
        Trace(tmp_path)


def test_a_header_with_something_missing(tmp_path: Path) -> None:
    recorded(tmp_path, n=1)
    header = json.loads((tmp_path / "trace.json").read_text())
    del header["length"]
    (tmp_path / "trace.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match="cannot read the trace"):
        Trace(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("prompts", value) for value in ("x", -1, 0, True, 1.0, 10**12, None)),
        *(("length", value) for value in ("x", 0, 4097)),
        *(("temperature", value) for value in ("x", -1.0, True)),
        ("max_new_tokens", 0),
        ("vocab_size", -1),
        ("seed", "x"),
        ("overlap", 1),
        ("eos", ["x"]),
        ("eos", {}),
        ("target", 7),
        ("workload", None),
        ("drafters", ["ngram"]),
    ],
)
def test_a_header_with_something_damaged(key: str, value: object, tmp_path: Path) -> None:
    recorded(tmp_path, n=1)
    header = json.loads((tmp_path / "trace.json").read_text())
    (tmp_path / "trace.json").write_text(json.dumps(header | {key: value}))
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
    about: dict[str, Any] = {"name": "", "workload": "", "prompts": prompts(1), "length": 2}
    with pytest.raises(UserError, match="--length 0: give 1 to 4096"):
        recorded(tmp_path / "a", length=0, n=1)
    with pytest.raises(UserError, match="record at --temperature 0"):
        header_of(models, team(), settings(8, temperature=1.0), overlap=True, **about)

    class Mute(SimDrafter):
        grade = None  # type: ignore[assignment]

        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            return [Draft.chain([1]) for _ in jobs]

    class Broken(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            raise RuntimeError("out of luck\nand of lines")

    broken: dict[str, Drafter] = {"odd": Broken(markov(np.eye(14)))}
    header = header_of(models, broken, sampling, overlap=False, **about)
    with pytest.raises(UserError, match=r"drafter odd failed \(RuntimeError: out of luck\): leave it out"):
        record(models, broken, prompts(1), tmp_path / "broken", header, sampling)
    drawing = SimDrafter(markov(np.eye(14)), sampled=True)
    for one, said in ((Mute(markov(np.eye(14))), "carry no stop signals"), (drawing, "draws its tokens")):
        crew: dict[str, Drafter] = {"odd": one}
        header = header_of(models, crew, sampling, overlap=False, **about)
        with pytest.raises(UserError, match=f"drafter odd: .*{said}.*leave it out of --drafters"):
            record(models, crew, prompts(1), tmp_path / said, header, sampling)
