"""Records a trace: the target's text for each prompt, and every drafter's drafts at each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ...core.drafter_pool import Member
from ...core.loop import Loop
from ...core.request_round import unfailed
from ...core.roles import Drafter, Grader, Target, Waiter
from ...core.sampling import Sampling
from ...errors import UserError
from ...policies.catalogue import method
from ...writing import write_json
from ..machine import Meter, describe
from ..results import Progress
from ..writing import make_folder
from .costs import Costs, costs_json, measure_costs, read_costs
from .drafts import (
    Text,
    TextReader,
    named_errors,
    record_grades,
    record_lookup,
    record_model,
)
from .files import (
    Header,
    RecordedDrafts,
    Recording,
    check_recordable,
    file_of,
    header_json,
    load,
    read_header,
    save,
)
from .heads import record_heads

FIRST_ID = 1 << 40  # ids of a recording's requests, far from those of any loop on the same target
COST_PROMPTS = 16  # prompts for measuring costs
UNHELD = "which a trace does not hold; leave it out of --drafters, and use draftwise bench"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to record, encoded."""

    name: str
    category: str
    tokens: Sequence[int]


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
    load: Mapping[str, Any] | None = None,
) -> Header:
    """Return the header of a recording with these settings."""
    check_recordable(length)
    if overlap and not sampling.greedy:
        for who, drafter in drafters.items():
            if isinstance(drafter, Grader) and not isinstance(drafter, Waiter):
                raise UserError(
                    f"--overlap: drafter {who} samples its drafts, and they are not known: "
                    "leave it out of --drafters, or record at --temperature 0"
                )
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
        waits=[who for who, drafter in drafters.items() if isinstance(drafter, Waiter)],
        load=dict(load or {}),
    )


def record(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Prompt],
    folder: Path,
    header: Header,
    *,
    progress: Progress | None = None,
) -> int:
    """Record every prompt that the folder lacks; returns how many were already there."""
    for name, drafter in drafters.items():
        _check_drafter(name, drafter)
    _begin(folder, header)
    recorder, resumed = Recorder(target, drafters, header), 0
    for i, prompt in enumerate(prompts):
        path = file_of(folder, i)
        if path.is_file():
            resumed += 1
            recorder.relive(load(path, header, prompt.tokens))
        else:
            save(recorder.record(prompt, i), path, header)
        if progress:
            progress(i + 1, len(prompts))
    return resumed


def _check_drafter(name: str, drafter: Any) -> None:
    if isinstance(drafter, Waiter):
        from ...drafters.neural.early_exit import EarlyExitDrafter
        from ...drafters.neural.heads import HeadDrafter

        is_head = isinstance(drafter, HeadDrafter) and isinstance(drafter, Grader)
        if not is_head or isinstance(drafter, EarlyExitDrafter):
            raise UserError(f"drafter {name}: it uses the target's hidden states in a way {UNHELD}")
    if isinstance(drafter, Member):
        raise UserError(f"drafter {name}: it drafts with the others, at places {UNHELD[6:]}")
    if getattr(drafter, "branches", 1) > 1:
        raise UserError(f"drafter {name}: a trace holds chains; leave out its width")


def _begin(folder: Path, header: Header) -> None:
    """Make the folder, or check that it holds the beginning of this very trace."""
    if (folder / "trace.json").is_file():
        content, own = header_json(read_header(folder)), header_json(header)
        if different := [key for key in own if content.get(key) != own[key]]:
            raise UserError(
                f"{str(folder)!r} holds a trace with {different[0]} {content.get(different[0])!r}, "
                f"not {own[different[0]]!r}: choose another --out"
            )
        return
    make_folder(folder)
    write_json(folder / "trace.json", header_json(header))


class Recorder:
    """Records prompts one after the other, as the drafters would have met them."""

    def __init__(self, target: Target, drafters: Mapping[str, Drafter], header: Header) -> None:
        self.target, self.drafters, self.header = target, drafters, header
        self.ids = count(FIRST_ID)

    def record(self, prompt: Prompt, number: int = 0) -> Recording:
        """Record one prompt; each prompt number has its own random numbers."""
        header = self.header
        seed = Random(f"text {header.seed} {number}").getrandbits(32)
        sampling = replace(header.sampling, seed=seed)
        text = write_text(self.target, prompt.tokens, sampling, beyond=header.length)
        if not header.greedy:
            reader = TextReader(self.target, text, self.ids)
            text = replace(text, scores=reader.chunks(len(text.tokens)))
            reader.close()
        heads = {name: drafter for name, drafter in self.drafters.items() if isinstance(drafter, Waiter)}
        drafts = record_heads(heads, text, header.length, self.ids, self.target, overlap=header.overlap)
        others = {name: drafter for name, drafter in self.drafters.items() if name not in heads}
        drafts |= {name: self._record(name, drafter, text) for name, drafter in others.items()}
        return Recording(
            name=prompt.name,
            category=prompt.category,
            prompt=np.array(text.prompt, np.int32),
            text=np.array(text.tokens, np.int32),
            committed=text.committed,
            budget=text.budget,
            ended=text.ended,
            probs=np.array([] if header.greedy else [text.chance(*pair) for pair in enumerate(text.tokens)]),
            drafts=drafts,
        )

    def relive(self, recording: Recording) -> None:
        """Show the lookups a text that was recorded before, since some learn from earlier texts."""
        committed = recording.text[: recording.committed].tolist()
        prompt = recording.prompt.tolist()
        text = Text(prompt, committed, len(committed), recording.budget, True, self.header.sampling)
        for name, drafter in self.drafters.items():
            if not self.header.drafters[name]:
                request = text.request(next(self.ids), 0)
                drafter.observe(request, prompt)
                drafter.observe(request, committed)
                drafter.close(request)

    def _record(self, name: str, drafter: Drafter, text: Text) -> RecordedDrafts:
        target = self.target if self.header.overlap else None
        length, is_grader = self.header.length, self.header.drafters[name]
        with named_errors(name):
            if is_grader and not self.header.greedy:
                return record_grades(drafter, text, length, self.ids)
            make = record_model if is_grader else record_lookup
            return make(drafter, text, length, self.ids, target=target)


def write_text(target: Target, prompt: Sequence[int], sampling: Sampling, *, beyond: int) -> Text:
    """Decode a prompt plainly, continuing for `beyond` tokens if the text ends before its budget."""
    plain = method("none", [])
    loop = Loop(target, {}, plain.policy, plain.recorder)
    request = loop.add(prompt, replace(sampling, eos=frozenset()))
    budget, written, end = request.sampling.max_new_tokens, list[int](), 0
    while loop.open and not (end and len(written) >= end + beyond):
        (round,) = unfailed(loop.step())
        written += round.tokens
        if not end and written[-1] in sampling.eos:
            end = len(written)
    loop.close(request)
    return Text(list(prompt), written, end or len(written), budget, bool(end), sampling)


def record_costs(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Prompt],
    folder: Path,
    header: Header,
    *,
    load: float | None = None,
    progress: Progress | None = None,
) -> Costs:
    """Measure the costs of a round on some of the prompts and write them, unless they are there.

    `load` is the load average before the run; use of the machine by other processes is stored with the costs.
    `progress` is told of the rounds that were measured.
    """
    path = folder / "costs.json"
    if not path.is_file():
        texts = [prompt.tokens for prompt in prompts[:: max(1, len(prompts) // COST_PROMPTS)]]
        meter = Meter()
        costs = measure_costs(
            target,
            drafters,
            texts,
            header.sampling,
            length=header.length,
            seed=header.seed,
            progress=progress,
        )
        samples = ({"start": load}, meter.sample())
        write_json(path, costs_json(replace(costs, machine=describe(), load=samples)))
    return read_costs(str(path))
