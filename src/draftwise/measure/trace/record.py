"""Records a trace: the target's text for each prompt, and every drafter's answers at each position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

from ...core.drafter_pool import Member
from ...core.roles import Drafter, Grader, Target, Waiter
from ...core.sampling import Sampling
from ...errors import UserError
from ..machine import Meter, describe
from ..writing import no_benchmark, reachable
from . import costs, drawn, models
from . import lookups as drafts
from .costs import Costs
from .files import Answers, Header, Recording, as_json, file_of, load, read_header, save, write_json
from .limits import recordable
from .lookups import Given
from .measure import measure
from .reading import Text, fresh_ids, looked_at, write

Progress = Callable[[int, int], None]
"""Called with the number of finished prompts, and their total."""
TEXTS = 16  # prompts for measuring costs


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to record, encoded."""

    name: str
    category: str
    tokens: Sequence[int]


def usable(folder: Path) -> None:
    """Check that a trace can be written to a folder, which is not a benchmark's.

    Raises:
        UserError: it holds a benchmark, or nothing can be written there.
    """
    no_benchmark(folder)
    reachable(folder)


def header_of(
    target: Target,
    drafters: Mapping[str, Drafter],
    sampling: Sampling,
    *,
    name: str,
    workload: str,
    prompts: Sequence[Prompt],
    length: int,
    overlap: bool,
) -> Header:
    """The header of a recording with these settings.

    Raises:
        UserError: see `recordable`.
    """
    recordable(length, overlap=overlap, greedy=sampling.greedy)
    return Header(
        target=name,
        drafters={who: isinstance(drafter, Grader) for who, drafter in drafters.items()},
        workload=workload,
        prompts=len(prompts),
        digest=sha256(repr([list(p.tokens) for p in prompts]).encode()).hexdigest()[:16],
        length=length,
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed or 0,
        overlap=overlap,
        vocab_size=target.vocab_size,
        eos=sorted(sampling.eos),
    )


def record(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Prompt],
    folder: Path,
    header: Header,
    sampling: Sampling,
    *,
    progress: Progress | None = None,
) -> int:
    """Record every prompt that the folder lacks; returns how many were already there.

    Each recording is written atomically, so an interrupted run resumes where it stopped.

    Raises:
        UserError: the folder holds another trace, or a drafter fails or cannot be recorded.
    """
    for name, drafter in drafters.items():
        _check(name, drafter)
    begin(folder, header)
    recorder, known = Recorder(target, drafters, header, sampling), 0
    for i, prompt in enumerate(prompts):
        path = file_of(folder, i)
        if path.is_file():
            recording, known = load(path, header), known + 1
            recorder.relive(recording)
        else:
            recording = recorder.record(prompt, i)
            save(recording, path, header)
        if progress:
            progress(i + 1, len(prompts))
    return known


def _check(name: str, drafter: Drafter) -> None:
    """Reject drafters and settings that a trace cannot hold."""
    if isinstance(drafter, Waiter):
        raise UserError(
            f"drafter {name}: it continues from the target's hidden states, which a trace does not hold; "
            "leave it out of --drafters, and use draftwise bench"
        )
    if isinstance(drafter, Member):
        raise UserError(
            f"drafter {name}: it drafts with the others, at places that a trace does not hold; "
            "leave it out of --drafters, and use draftwise bench"
        )
    if getattr(drafter, "branches", 1) > 1:
        raise UserError(f"drafter {name}: a trace holds chains; leave out its width")


def begin(folder: Path, header: Header) -> None:
    """Make the folder, or check that it holds the beginning of this very trace.

    Raises:
        UserError: it holds another trace, or cannot be made.
    """
    if (folder / "trace.json").is_file():
        found, wanted = as_json(read_header(folder)), as_json(header)
        if different := [key for key in wanted if found.get(key) != wanted[key]]:
            raise UserError(
                f"{str(folder)!r} holds a trace with {different[0]} {found.get(different[0])!r}, "
                f"not {wanted[different[0]]!r}: choose another --out"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "trace.json", as_json(header))
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {error.strerror}; choose another --out") from None


class Recorder:
    """Records prompts one after the other, as the drafters would have met them."""

    def __init__(
        self, target: Target, drafters: Mapping[str, Drafter], header: Header, sampling: Sampling
    ) -> None:
        self.target, self.drafters = target, drafters
        self.header, self.sampling = header, sampling
        self.ids = fresh_ids()

    def record(self, prompt: Prompt, number: int = 0) -> Recording:
        """Record one prompt; each prompt number has its own random numbers.

        Raises:
            UserError: the prompt does not fit, or a drafter fails or cannot be recorded.
        """
        header = self.header
        sampling = replace(self.sampling, seed=_mixed(header.seed, number))
        text = write(self.target, prompt.tokens, sampling, beyond=header.length)
        if not header.greedy:
            text = looked_at(self.target, text, self.ids)
        found = {name: self._answers(name, drafter, text) for name, drafter in self.drafters.items()}
        return Recording(
            name=prompt.name,
            category=prompt.category,
            prompt=np.array(text.prompt, np.int32),
            text=np.array(text.tokens, np.int32),
            committed=text.committed,
            budget=text.budget,
            ended=text.ended,
            probs=np.array([] if header.greedy else [text.chance(*pair) for pair in enumerate(text.tokens)]),
            given={name: given for name, (_, given) in found.items()},
            answers={name: answers for name, (answers, _) in found.items()},
        )

    def relive(self, recording: Recording) -> None:
        """Show the lookups a text that was recorded before, since some learn from earlier texts."""
        committed = recording.text[: recording.committed].tolist()
        prompt = recording.prompt.tolist()
        text = Text(prompt, committed, len(committed), recording.budget, True, self.sampling)
        for name, drafter in self.drafters.items():
            if not self.header.drafters[name]:
                request = text.request(next(self.ids), 0)
                drafter.observe(request, prompt)
                drafter.observe(request, committed)
                drafter.close(request)

    def _answers(self, name: str, drafter: Drafter, text: Text) -> tuple[Answers, Given | None]:
        target = self.target if self.header.overlap else None
        length, grades = self.header.length, self.header.drafters[name]
        try:
            if grades and not self.header.greedy:
                return drawn.answers(drafter, text, length, self.ids)
            make = models.answers if grades else drafts.answers
            return make(drafter, text, length, self.ids, target=target)
        except UserError as error:
            raise UserError(f"drafter {name}: {error}; leave it out of --drafters") from None
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(f"drafter {name} failed ({said}): leave it out of --drafters") from error


def _mixed(seed: int, number: int) -> int:
    return Random(f"text {seed} {number}").getrandbits(32)


def measured(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Prompt],
    folder: Path,
    header: Header,
    sampling: Sampling,
    *,
    load: float | None = None,
) -> Costs:
    """Measure the costs of a round on some of the prompts and write them, unless they are there.

    `load` is the load average before the run; use of the machine by other processes is stored with the costs.
    """
    path = folder / "costs.json"
    if not path.is_file():
        texts = [prompt.tokens for prompt in prompts[:: max(1, len(prompts) // TEXTS)]]
        meter = Meter()
        found = measure(target, drafters, texts, sampling, length=header.length, seed=header.seed)
        noted = ({"start": load}, meter.sample())
        write_json(path, costs.as_json(replace(found, machine=describe(), load=noted)))
    return costs.read_costs(str(path))
