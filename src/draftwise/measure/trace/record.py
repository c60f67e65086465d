"""Records a trace: the target's text for each prompt, and every drafter's drafts at each position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ...core.drafter_pool import Member
from ...core.drafts import Draft, Job
from ...core.loop import Loop
from ...core.request import Request
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
    BATCH,
    CHUNK,
    READ_ALL,
    DraftTable,
    Text,
    TextReader,
    accepted_chances,
    check_chain,
    draft_one,
    find_given,
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
    if progress:
        progress(0, len(prompts))
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


# -- heads ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TextCoupling:
    """Chooses the tokens of a sampled draft given the text, so that both together are as in live rounds.

    A live round accepts a drafted token with probability min(1, p / q) and replaces a rejected one by a token
    from (p - q)+. Read backwards from the text's token: it was drafted with probability min(1, q / p), else a
    token from (q - p)+ was drafted and rejected. What follows a rejected token is drawn from q.

    `accept` and `overlap` are the grade of the draft's first token: that probability, and the sum of
    min(p, q).
    """

    text: Text
    at: int
    rng: Random
    accept: float = 0.0
    overlap: float = 0.0

    def choose(self, drafted: Sequence[int], q: Any) -> int:
        """Return the next token of a draft made at `at`, of distribution `q` over the target's vocabulary."""
        from ...models.distributions import draw

        text, place = self.text, self.at + len(drafted)
        if list(drafted) != text.tokens[self.at : place]:
            return draw(q, self.rng.random())
        p, token = text.distribution(place).to(q.device), text.tokens[place]
        chances = float(p[token]), float(q[token])
        if not drafted:
            self.accept = min(1.0, chances[1] / chances[0]) if chances[0] > 0.0 else 1.0
            self.overlap = float(p.minimum(q).sum())
        if self.rng.random() * chances[0] < chances[1]:
            return token
        rejected = (q - p).clamp_(min=0.0)
        return draw(rejected if rejected.any() else q, self.rng.random())


def record_heads(
    drafters: Mapping[str, Any], text: Text, length: int, ids: Iterator[int], target: Target, *, overlap: bool
) -> dict[str, RecordedDrafts]:
    """Record the drafts that heads make from the target's hidden states at each position.

    A later token is drafted from the head's own states, so each position has a draft of its own; those of
    `BATCH` positions are made in one batch. The first has none: before the target has read the prompt there
    are no states.
    """
    if not drafters:
        return {}
    reader, n = TextReader(target, text, ids), text.committed
    for at in (*range(0, n, CHUNK), n):
        reader.scores(at, Draft())
    whole = reader.request
    for name, drafter in drafters.items():
        with named_errors(name):
            draft_one(drafter, Job(whole, 1, deterministic=True))  # reads the whole text
    graded = 0 if text.sampling.greedy else len(text.tokens)
    tables = {name: DraftTable(text, length, graded=graded) for name in drafters}
    scored = TextReader(target, text, ids) if overlap else None
    for first in range(1, n, BATCH):
        views = [text.request(next(ids), at) for at in range(first, min(first + BATCH, n))]
        for view in views:
            target.open(view)
        drafts = []
        for name, drafter in drafters.items():
            with named_errors(name):
                drafts.append(_draft_views(drafter, whole, views, length, tables[name], text, rows=overlap))
        for view in views:
            target.close(view)
        chains = [(at, draft) for at, of in enumerate(zip(*drafts, strict=True), first) for draft in of]
        overlaps = scored.chain_overlaps(chains) if scored else [()] * len(chains)
        for name, (at, draft), along in zip(cycle(drafters), chains, overlaps, strict=False):
            with named_errors(name):
                start = tables[name].add(draft, along, accepted_chances(at, draft, text))
                tables[name].place(at, start, len(draft.tokens))
    for one in (reader, scored):
        if one:
            one.close()
    for drafter in drafters.values():
        drafter.close(whole)
    return {name: table.build() for name, table in tables.items()}


def _draft_views(
    drafter: Any,
    whole: Request,
    views: Sequence[Request],
    length: int,
    table: DraftTable,
    text: Text,
    *,
    rows: bool,
) -> list[Draft]:
    """Draft at the end of each view of a text that the head has read."""
    jobs, couplings = [], list[TextCoupling]()
    for view in views:
        drafter.seat(whole, view)
        drafter.observe(view, view.tokens)
        table.hint[view.position] = drafter.hint(view)
        if (longest := min(length, view.remaining - 1)) > 0:
            jobs.append(Job(view, longest, READ_ALL, rows=rows))
            if not text.sampling.greedy:
                couplings.append(TextCoupling(text, view.position, view.rng))
                jobs[-1] = replace(jobs[-1], choose=couplings[-1].choose)
    drafts = drafter.draft(jobs) if jobs else []
    for coupling in couplings:
        table.accept[coupling.at], table.shared[coupling.at] = coupling.accept, coupling.overlap
    if couplings:  # what they were drawn from is in the choice
        drafts = [replace(draft, probs=(), dist=None) for draft in drafts]
    for job, draft in zip(jobs, map(check_chain, drafts), strict=True):
        if table.given is None and draft.tokens:
            table.given = find_given(drafter, job.request, job.length)
    for view in views:
        drafter.close(view)
    return [*drafts, *[Draft()] * (len(views) - len(jobs))]  # those at the budget's end are the last
