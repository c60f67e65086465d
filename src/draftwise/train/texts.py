"""The prompts of a training, and the target's answers to them, which are the training data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol

from ..core.request_round import unfailed
from ..core.roles import window_of
from ..core.sampling import Sampling
from ..errors import UserError
from ..generation.decoder import Decoder
from ..inputs import parse_json, whole
from ..models.fingerprints import model_fingerprint
from .settings import Run, Training

ANSWERS = 0.4  # the share of a training's minutes that the target may spend on answers
STEPS = 0.95  # and until when steps are taken; measuring takes the rest
FORMAT, VERSION = "draftwise-answers", 2
WANTED = 'write {"prompt": "..."} or {"turns": ["..."]} on each line, "domain" beside it if you like'

Job = tuple[list[int], float, int]
"""A prompt's tokens, a temperature, and the prompt's number."""


class Tell(Protocol):
    """Shows how far a phase is: what it is, how much is done, of how much; the seconds left if known."""

    def __call__(self, what: str, done: int, total: int, left: float | None = None) -> None: ...


def write_atomically(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


class Budget:
    """Counts the minutes of a training; a resumed run continues to count. 0 minutes are no limit."""

    def __init__(self, minutes: float, file: Path) -> None:
        self.seconds, self.file, self.began = 60.0 * minutes, file, monotonic()
        try:
            self.before = float(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else 0.0
        except (OSError, ValueError, TypeError):
            self.before = 0.0  # a damaged count costs time, not the training

    @property
    def is_limited(self) -> bool:
        return self.seconds > 0

    @property
    def used(self) -> float:
        """The share of the time that is over; 0 without a limit."""
        return self._spent() / self.seconds if self.is_limited else 0.0

    def left(self, share: float) -> float:
        """Return the seconds until a share of the time is over; 0 without a limit."""
        return max(0.0, share * self.seconds - self._spent())

    def save(self) -> None:
        """Write the time spent so far, for a run that resumes."""
        if self.is_limited:
            write_atomically(self.file, json.dumps(round(self._spent(), 1)))

    def _spent(self) -> float:
        return self.before + monotonic() - self.began


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the data, its domain, and the source of its text."""

    text: str
    domain: str
    source: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt's tokens and the target's answer at a temperature."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    temperature: float

    @property
    def text(self) -> tuple[int, ...]:
        return self.prompt + self.tokens


def prompts(run: Run) -> tuple[list[Prompt], list[Prompt]]:
    """Read the training prompts and the held-out ones, in an order that depends only on the seed.

    Raises:
        UserError: a file cannot be read, has a line without a prompt, or too few are left.
    """
    by_text: dict[str, Prompt] = {}  # a held-out prompt must not be trained on
    rng = Random(f"prompts {run.seed}")
    for name in run.data:
        rows = [p for p in _read(Path(name).expanduser()) if p.domain.startswith(run.domain)]
        rng.shuffle(rows)
        by_text |= {p.text: p for p in rows[: run.limit or len(rows)]}
    chosen = list(by_text.values())
    rng.shuffle(chosen)
    if len(chosen) <= run.held_out:
        of = f" of domain {run.domain!r}" if run.domain else ""
        raise UserError(
            f"{len(chosen)} prompts{of} in {', '.join(run.data)} and {run.held_out} are held out: "
            "give more data, or a smaller --held-out"
        )
    return chosen[run.held_out :], chosen[: run.held_out]


def _read(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the prompts in {path}: {reason}; name a JSONL file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = parse_json(line)
            text = row["prompt"] if "prompt" in row else row["turns"][0]
        except (ValueError, TypeError, KeyError, IndexError):
            raise UserError(f"{path}, line {number}: no prompt; {WANTED}") from None
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{path}, line {number}: the prompt is not text; {WANTED}")
        whole(text, f"{path}, line {number}:")
        source = str(row.get("source", "")).partition("@")[0].partition("==")[0]
        yield Prompt(text, str(row.get("domain", row.get("category", ""))), source)


def answers(
    run: Training,
    encoded: Sequence[Sequence[int]],
    target: Any,
    tokenizer: Any,
    path: Path,
    tell: Tell,
    *,
    first: int = 0,
    budget: Budget | None = None,
) -> list[Answer]:
    """Every prompt answered at every temperature, by the project's own decoder, and stored in a file.

    Prompts are answered in batches, each decoded independently and written as one line, so a run that is
    killed and resumed writes exactly the same text. The `first` prompts are answered before all others; where
    the time for answers is over, the rest of the others have none.

    Raises:
        UserError: the file exists and holds other prompts, another target's text, or is damaged.
    """
    jobs = [(list(ids), t, i) for i, ids in enumerate(encoded) for t in run.temperatures]
    split = first * len(run.temperatures)
    needed = _batches(jobs[:split], run.together)
    others = _batches(jobs[split:], run.together)
    Random(f"batches {run.seed}").shuffle(others)  # so that those answered in time are of all lengths
    batches = needed + others
    done = _finished(path, _header(run, encoded, target, first), len(batches))
    finished = sum(map(len, batches[: len(done)]))
    with path.open("a", encoding="utf-8") as file:
        for number in range(len(done), len(batches)):
            left: dict[str, float] = {}
            if budget is not None and budget.is_limited:
                budget.save()
                left = {"left": budget.left(ANSWERS)}
                if not left["left"] and number > len(needed):
                    break

            def count(ended: int, before: int = finished, left: dict[str, float] = left) -> None:
                tell("Target answers", before + ended, len(jobs), **left)

            done.append(_decode(run, batches[number], target, tokenizer, count))
            finished += len(batches[number])
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            os.fsync(file.fileno())
    tell("Target answers", finished, finished)
    pairs = [pair for row in zip(batches, done, strict=False) for pair in zip(*row, strict=True)]
    pairs.sort(key=lambda pair: (len(pair[0][0]), pair[0][2], run.temperatures.index(pair[0][1])))
    return [Answer(tuple(ids), tuple(tokens), t) for (ids, t, _), tokens in pairs if tokens]


def _batches(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Batches of similar length: the longest row of a batch determines its cost."""
    order = sorted(jobs, key=lambda job: len(job[0]))
    return [order[at : at + size] for at in range(0, len(order), size)]


def _header(run: Training, encoded: Sequence[Sequence[int]], target: Any, first: int) -> dict[str, Any]:
    """The header of a file of answers: if any of it changes, it is another file."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": model_fingerprint(target),
        "prompts": sha256(json.dumps([list(ids) for ids in encoded]).encode()).hexdigest(),
        "temperatures": list(run.temperatures),
        "max_new_tokens": run.max_new_tokens,
        "together": run.together,
        "seed": run.seed,
        "order": "length",
        "first": first,
    }


def _finished(path: Path, header: dict[str, Any], most: int) -> list[list[list[int]]]:
    """The finished batches; an incomplete last line of a killed run is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_atomically(path, json.dumps(header) + "\n")
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        os.truncate(path, len(complete))
    try:
        written, *batches = [json.loads(line) for line in complete.splitlines()]
        other = [key for key in header if written.get(key) != header[key]]
    except (ValueError, AttributeError):
        raise UserError(f"{path} is no file of answers: remove it, or name another with --answers") from None
    if other:
        raise UserError(
            f"the answers in {path} differ in {', '.join(other)}: remove the file, or name another "
            "with --answers"
        )
    if len(batches) > most:
        raise UserError(f"{path} holds {len(batches)} batches where {most} are wanted: remove it")
    return batches


def _decode(
    run: Training, batch: Sequence[Job], target: Any, tokenizer: Any, count: Callable[[int], None]
) -> list[list[int]]:
    """The tokens of each answer of a batch; `count` is told how many have ended."""
    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, policy="none")
    places, out = dict[int, int](), [list[int]() for _ in batch]
    for place, (ids, temperature, number) in enumerate(batch):
        seed = int(sha256(f"{run.seed} {number} {temperature}".encode()).hexdigest()[:8], 16)
        sampling = Sampling(
            max_new_tokens=run.max_new_tokens, temperature=temperature, eos=decoder.eos, seed=seed
        )
        places[decoder.loop.add(ids, sampling).id] = place
    while places:
        for round in unfailed(decoder.loop.step()):
            out[places[round.request]].extend(round.tokens)
            if round.done:
                del places[round.request]
        count(len(batch) - len(places))
    return out


def encoded(run: Training, prompts: Sequence[Prompt], target: Any, tokenizer: Any) -> list[list[int]]:
    """The prompts as tokens; prompts that leave no room for an answer are left out.

    Raises:
        UserError: none fits.
    """
    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, policy="none")
    window = window_of(decoder.loop.target) - run.max_new_tokens
    texts = [decoder.encode(p.text, chat=not run.raw) for p in prompts]
    fitting = [ids for ids in texts if len(ids) < window]
    if not fitting:
        raise UserError(
            f"no prompt and {run.max_new_tokens} tokens fit the target's window of "
            f"{window + run.max_new_tokens}: give shorter prompts or fewer --max-new-tokens"
        )
    return fitting
