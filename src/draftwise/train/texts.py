"""The prompts of a training, and the target's answers to them, which are the training data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol

import torch

from ..core.request_round import unfailed
from ..core.roles import window_of
from ..core.sampling import Sampling
from ..data import Prompt, load_prompts
from ..errors import UserError, pluralize
from ..generation.decoder import Decoder
from ..inputs import expanded
from ..models.fingerprints import model_fingerprint
from ..writing import write_text
from .settings import Run, Training

ANSWERS = 0.4  # the share of a training's minutes that the target may spend on answers
STEPS = 0.95  # and until when steps are taken; measuring takes the rest
FORMAT, VERSION = "draftwise-answers", 3

Job = tuple[list[int], float, int]
"""A prompt's tokens, a temperature, and the prompt's number."""


class Tell(Protocol):
    """Shows how far a phase is: what it is, how much is done, of how much; the seconds left if known."""

    def __call__(self, what: str, done: int, total: int, left: float | None = None) -> None: ...


class Budget:
    """Counts the minutes of a training; a resumed run continues to count."""

    def __init__(self, minutes: float, file: Path) -> None:
        self.seconds, self.file, self.began = 60.0 * minutes, file, monotonic()
        self.before, self.first = 0.0, -1.0
        with suppress(OSError, ValueError, TypeError, KeyError):  # damage costs time, not the training
            stored = json.loads(file.read_text(encoding="utf-8"))
            self.before, self.first = float(stored["seconds"]), float(stored["first"])

    @property
    def used(self) -> float:
        """The share of the time that is over."""
        return self._spent() / self.seconds

    def left(self, share: float) -> float:
        """Return the seconds until a share of the time is over."""
        return max(0.0, share * self.seconds - self._spent())

    @property
    def steps_begin(self) -> float:
        """The share of the time that was over when the first step was taken, maybe by a run before this."""
        if self.first < 0.0:
            self.first = min(self.used, ANSWERS)
        return self.first

    def save(self) -> None:
        """Write the time spent so far, for a run that resumes."""
        write_text(self.file, json.dumps({"seconds": round(self._spent(), 1), "first": self.first}))

    def _spent(self) -> float:
        return self.before + monotonic() - self.began


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt's tokens and those of the target's answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

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
        rows = [p for p in load_prompts(expanded(name)) if p.domain.startswith(run.domain)]
        rng.shuffle(rows)
        by_text |= {p.text: p for p in rows[: run.limit or len(rows)]}
    chosen = list(by_text.values())
    rng.shuffle(chosen)
    if len(chosen) <= run.held_out:
        of = f" of domain {run.domain!r}" if run.domain else ""
        raise UserError(
            f"{pluralize(len(chosen), 'prompt')}{of} in {', '.join(run.data)} and {run.held_out} are held "
            "out: give more data, or a smaller --held-out"
        )
    return chosen[run.held_out :], chosen[: run.held_out]


class Writer:
    """Writes the answers: the target, on a CPU as a copy in bfloat16 if that is faster (`half`).

    A batch in bfloat16 may round a near tie otherwise than a single text, which training data can bear, so
    the copy is not probed for it. A target whose texts cannot share a pass in float32 is not copied.
    """

    def __init__(self, target: Any, tokenizer: Any, *, half: bool = False) -> None:
        self.target, self.tokenizer, self.half = target, tokenizer, half

    @cached_property
    def probed(self) -> Decoder:
        """A decoder of the target itself."""
        return Decoder.from_pretrained(self.target, tokenizer=self.tokenizer, policy="none")

    def decoder(self) -> Decoder:
        """A decoder with no requests, for one batch."""
        copied = self._model is not self.target
        how: dict[str, Any] = {"probe": False, "compile": "off"} if copied else {}
        return Decoder.from_pretrained(self._model, tokenizer=self.tokenizer, policy="none", **how)

    @cached_property
    def _model(self) -> Any:
        runner = getattr(self.probed.loop.target, "runner", None)
        copied = self.half and self.target.dtype == torch.float32 and getattr(runner, "together", False)
        return deepcopy(self.target).to(torch.bfloat16) if copied else self.target


def answers(
    run: Training,
    encoded: Sequence[Sequence[int]],
    writer: Writer,
    path: Path,
    tell: Tell,
    *,
    first: int = 0,
    budget: Budget | None = None,
) -> list[Answer]:
    """Every prompt answered at every temperature, by the project's own decoder, and stored in a file.

    What the file already has is not answered again, so trainings on other prompts of one target can share it.
    Prompts are answered in batches, each decoded independently and written as one line, so a run that is
    killed and resumed writes exactly the same text. The `first` prompts are answered before all others; where
    the time for answers is over, the rest of the others have none.

    Raises:
        UserError: the file exists and holds another target's text, or is damaged.
    """
    jobs = [(list(ids), t, i) for i, ids in enumerate(encoded) for t in run.temperatures]
    split = first * len(run.temperatures)
    needed, others = (_batches(some, run.together) for some in (jobs[:split], jobs[split:]))
    Random(f"batches {run.seed}").shuffle(others)  # so that those answered in time are of all lengths
    by_key = _finished(path, _header(run, writer.target))
    finished = sum(_key(job) in by_key for job in jobs)
    with path.open("a", encoding="utf-8") as file:
        for number, batch in enumerate([*needed, *others]):
            missing = [job for job in batch if _key(job) not in by_key]
            if not missing:
                continue
            left: dict[str, float] = {}
            if budget is not None:
                budget.save()
                left = {"left": budget.left(ANSWERS)}
                if not left["left"] and number > len(needed):
                    break
            count = partial(_count, tell, finished, len(jobs), left)
            new = dict(zip(map(_key, missing), _decode(run, missing, writer.decoder(), count), strict=True))
            by_key |= new
            finished += len(missing)
            file.write(json.dumps(new) + "\n")
            file.flush()
            os.fsync(file.fileno())
    tell("Target answers", finished, finished)
    jobs.sort(key=lambda job: (len(job[0]), job[2], run.temperatures.index(job[1])))
    pairs = ((job[0], by_key.get(_key(job))) for job in jobs)
    return [Answer(tuple(ids), tuple(tokens)) for ids, tokens in pairs if tokens]


def _count(tell: Tell, before: int, total: int, left: Mapping[str, float], ended: int) -> None:
    tell("Target answers", before + ended, total, **left)


def _batches(jobs: Sequence[Job], size: int) -> list[list[Job]]:
    """Batches of similar length: the longest row of a batch determines its cost."""
    order = sorted(jobs, key=lambda job: len(job[0]))
    return [order[at : at + size] for at in range(0, len(order), size)]


def _key(job: Job) -> str:
    """What an answer is found by: a digest of the prompt and the temperature."""
    ids, temperature, _ = job
    return sha256(f"{list(ids)} {temperature}".encode()).hexdigest()[:20]


def _header(run: Training, target: Any) -> dict[str, Any]:
    """The header of a file of answers: if any of it changes, it is another file."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": model_fingerprint(target),
        "max_new_tokens": run.max_new_tokens,
        "seed": run.seed,
    }


def _finished(path: Path, header: dict[str, Any]) -> dict[str, list[int]]:
    """The answers of the finished batches; an incomplete last line of a killed run is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_text(path, json.dumps(header) + "\n")
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    try:
        written, *batches = [json.loads(line) for line in complete.splitlines()]
        other = [key for key in header if written.get(key) != header[key]]
        by_key = {key: list(map(int, tokens)) for batch in batches for key, tokens in batch.items()}
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{path} is no file of answers: remove it, or name another with --answers") from None
    if other:
        raise UserError(
            f"the answers in {path} differ in {', '.join(other)}: remove the file, or name another "
            "with --answers"
        )
    if len(complete) < len(data):
        os.truncate(path, len(complete))
    return by_key


def _decode(
    run: Training, batch: Sequence[Job], decoder: Decoder, count: Callable[[int], None]
) -> list[list[int]]:
    """The tokens of each answer of a batch; `count` is told how many have ended."""
    places, out = dict[int, int](), [list[int]() for _ in batch]
    for place, job in enumerate(batch):
        ids, temperature, _ = job
        seed = int(sha256(f"{run.seed} {_key(job)}".encode()).hexdigest()[:8], 16)
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


def encoded(run: Training, prompts: Sequence[Prompt], writer: Writer) -> list[list[int]]:
    """The prompts as tokens; prompts that leave no room for an answer are left out.

    Raises:
        UserError: none fits.
    """
    decoder = writer.probed
    window = window_of(decoder.loop.target) - run.max_new_tokens
    texts = [decoder.encode(p.text, chat=not run.raw) for p in prompts]
    fitting = [ids for ids in texts if len(ids) < window]
    if not fitting:
        raise UserError(
            f"no prompt and {run.max_new_tokens} tokens fit the target's window of "
            f"{window + run.max_new_tokens}: give shorter prompts or fewer --max-new-tokens"
        )
    return fitting
