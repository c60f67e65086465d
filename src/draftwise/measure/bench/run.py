"""One benchmark, from its settings to `results.json`: every method on every prompt, in turns; resumable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from ...core.roles import window_of
from ...core.sampling import Sampling
from ...errors import UserError
from ...generation.output import Writer
from ...generation.text import decode
from ...inputs import once
from ...models.threads import THREADS
from ...policies.catalogue import method
from ...writing import write_json
from .. import machine
from ..machine import Meter, judge
from ..results import BASELINE, Row, identical, round_row, summarize, work_row
from ..workloads import choose, encode_fitting, load
from .contender import Contender, Generation, Item, Peer, Text
from .journal import Journal, Unit, begun_with, usable
from .ours import Models, Policy
from .peers import Peers, Unavailable

WARM_UP_TOKENS = 24
COPIED_TOKENS = 48
COPY = "Repeat this exactly: " + "one two three four five six seven. " * 6
SAMPLES = 4  # prompts whose text is kept with the source of each token, each of another category


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run. `batch` may list several sizes; 0 means no limit."""

    workload: str
    target: str = "zoo:target"
    drafters: tuple[str, ...] = ()
    policies: tuple[str, ...] = (BASELINE,)
    peers: tuple[str, ...] = ()
    split: str = "all"
    per_category: int = 0
    limit: int = 0
    max_new_tokens: int = 128
    temperature: float = 0.0
    batch: tuple[int, ...] = (1,)
    seed: int = 0
    raw: bool = False
    dtype: str = "auto"
    device: str = "auto"
    compile: str = "kept"
    exact: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not self.batch or min(self.batch) < 1 or len(set(self.batch)) < len(self.batch):
            raise UserError(f"batch={','.join(map(str, self.batch))}: give sizes of at least 1, each once")
        for name in ("policies", "peers"):
            once(name, getattr(self, name))
        Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature)

    @property
    def load(self) -> dict[str, Any]:
        names = ("dtype", "device", "compile", "exact", "trust_remote_code")
        return {name: getattr(self, name) for name in names}

    @property
    def as_json(self) -> dict[str, Any]:
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}


def bench(settings: Settings, out: Path, *, tell: Callable[[Progress], None]) -> dict[str, Any]:
    """Measure, or resume an interrupted run, and write `results.json`; returns its content.

    Raises:
        UserError: bad settings, names or files, or a folder that belongs to another run.
    """
    usable(out, settings.as_json)
    for name in settings.policies:
        method(name, settings.drafters)  # its options are refused before anything is loaded
    load_average = machine.load_average()
    prompts = choose(
        load(settings.workload, seed=settings.seed),
        split=settings.split,
        per_category=settings.per_category,
        limit=settings.limit,
    )
    THREADS.keep(begun_with(out))
    models = Models.load(settings.target, settings.drafters, **settings.load)
    encoded, left_out = encode_fitting(
        prompts,
        partial(models.encode, raw=settings.raw),
        max_new_tokens=settings.max_new_tokens,
        window=window_of(models.target),
    )
    items = [Item(i, prompts[i].question_id, prompts[i].category, tuple(ids)) for i, ids in encoded]
    longest = max(len(item.ids) for item in items) + settings.max_new_tokens
    engines = sum(name.startswith("vllm") for name in settings.peers)
    own = models, settings.target, settings.drafters, settings.load
    with closing(Peers(*own, longest=longest, engines=engines)) as peers:
        contenders, absent = _contenders(settings, models, peers)
        facts = machine.describe() | {"packed": models.layouts(), "compiled": models.compiled()}
        generation = Generation(settings.max_new_tokens, settings.temperature, settings.seed)
        meter = machine.Meter({child.process.pid for child in peers.children})
        with closing(Journal(out, _identity(settings, items, facts), load=load_average)) as journal:
            runner = Runner(
                contenders, items, generation, settings.batch, journal, models.tokenizer, meter, tell
            )
            if settings.peers:
                runner.copy = Item(-1, "copy", "copy", tuple(models.encode(COPY, raw=settings.raw)))
            runner.run()
            results = _results(settings, runner, absent, facts) | {"left_out": left_out}
            write_json(out / "results.json", results)
    return results


def _contenders(settings: Settings, models: Models, peers: Peers) -> tuple[list[Contender], dict[str, str]]:
    """Return what is compared, and why other peers are not."""
    policies = dict.fromkeys([BASELINE, *settings.policies])
    contenders: list[Contender] = [Policy(name, models, seed=settings.seed) for name in policies]
    absent = {}
    for name in settings.peers:
        try:
            contenders.append(peers.build(name))
        except Unavailable as reason:
            absent[name] = str(reason)
    return contenders, absent


def _identity(settings: Settings, items: Sequence[Item], facts: dict[str, Any]) -> dict[str, Any]:
    """Return what must be unchanged to resume a run: its settings, prompts and machine."""
    digest = sha256(repr([(i.category, i.ids) for i in items]).encode()).hexdigest()[:16]
    same = {"cpu": facts["cpu"], "threads": facts["threads"], "gpu": facts["gpu"]}
    return settings.as_json | {"prompts_sha": digest} | same | {"versions": facts["versions"]}


def _results(
    settings: Settings, runner: Runner, absent: Mapping[str, str], facts: dict[str, Any]
) -> dict[str, Any]:
    """The content of `results.json`; marks in `prompts.jsonl` which texts equal those of plain decoding."""
    journal, greedy = runner.journal, settings.temperature == 0
    rows = identical(journal.rows()) if greedy else journal.rows()
    journal.rewrite(rows)
    gone = [{"method": name, "reason": reason} for name, reason in [*absent.items(), *runner.failed.items()]]
    for c, batch in product(runner.contenders, settings.batch):
        if 0 < (most := c.max_batch) < batch:
            reason = f"at batch {batch}: it takes at most {most} prompt{'s' * (most > 1)} at a time"
            gone.append({"method": c.name, "reason": reason})
    methods = [c.name for c in runner.contenders if c.name not in runner.failed]
    samples = [row["load"] for row in rows if row["load"]]
    reasons = judge(journal.starts, samples, facts["cores"])
    what = "ratio of total times" if greedy else "ratio of total times per token"
    return {
        "run": machine.run(),
        "machine": facts,
        "settings": journal.settings | {"speedup": what},
        "clean": not reasons,
        "busy": reasons,
        "load": [{"start": load} for load in journal.starts] + samples,
        "results": summarize(rows, methods=methods, greedy=greedy, seed=settings.seed),
        "peers": runner.peers(),
        "absent": gone,
    }


# -- running ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: units of work, and an estimate of the seconds left.

    Before the first unit `done` counts the methods that are ready, and `category` says ready for what.
    """

    done: int
    total: int
    method: str
    category: str
    seconds_left: float | None


@dataclass(slots=True)
class Runner:
    """Runs contenders over prompts and writes each finished unit to the journal.

    `copy` is a prompt that is easy to draft for: each peer answers it once, and its drafts are counted. A
    peer that fails is left out from then on; `failed` has the reason. A failure of one of our own methods
    stops the run. A unit over which the process was stopped (Ctrl-Z) is run again: its times have the pause.
    """

    contenders: Sequence[Contender]
    items: Sequence[Item]
    generation: Generation
    batches: Sequence[int]
    journal: Journal
    tokenizer: Any
    meter: Meter
    tell: Callable[[Progress], None]
    failed: dict[str, str] = field(default_factory=dict)
    copy: Item | None = None
    stops: machine.Stops = field(default_factory=machine.Stops)
    times: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self) -> None:
        work = list(self.work())
        self.journal.resume(unit for _, unit, _ in work)
        for row in self.journal.rows():
            self.times[row["method"], row["batch"]].append(row["seconds"])
        if all(self.journal.finished(unit) for _, unit, _ in work):
            return
        self._prepare(work)
        self._warm_up()
        self._try_peers()
        for contender in self.contenders:
            if (memory := self.journal.memory(contender.name)) is not None:
                contender.restore(memory)
        self.meter.sample()
        samples, batch = self._samples(), 0
        for at, (contender, unit, items) in enumerate(work):
            if contender.name in self.failed or self.journal.finished(unit):
                continue
            if unit.batch != batch:
                self._begin(batch := unit.batch, self.contenders)
            self.tell(self._progress(at, work))
            texts: Sequence[Text] = ()
            with self._failing(contender), self.stops:
                texts = self._decode(contender, unit.batch, items)
            if texts:
                self._write(contender, unit, items, texts, samples)

    def _decode(self, contender: Contender, batch: int, items: Sequence[Item]) -> Sequence[Text]:
        """Decode one batch: again, from what was known before it, if the process was stopped meanwhile."""
        memory = contender.memory()
        while True:
            stops = self.stops.count
            texts = contender.decode(items, self.generation)
            if self.stops.count == stops:
                return texts
            self._begin(batch, [contender])
            contender.restore(memory)
            self.meter.sample()

    def work(self) -> Iterator[tuple[Contender, Unit, Sequence[Item]]]:
        """All units in the order in which they run, which depends only on the seed."""
        for batch in self.batches:
            able = [c for c in self.contenders if c.max_batch == 0 or batch <= c.max_batch]
            for start in range(0, len(self.items), batch):
                group = self.items[start : start + batch]
                turns = Random(f"turns {self.generation.seed} {batch} {start}")
                for contender in turns.sample(able, len(able)):
                    yield contender, Unit(contender.name, batch, tuple(i.index for i in group)), group

    def _begin(self, batch: int, contenders: Sequence[Contender]) -> None:
        """Let no contender draft from its own answers to the same prompts at another batch size."""
        texts, items = self.journal.texts(batch), {item.index: item for item in self.items}
        for contender in contenders:
            own = texts.get(contender.name, {})
            contender.begin([(items[prompt], tokens) for prompt, tokens in own.items()])

    def peers(self) -> list[dict[str, Any]]:
        """Return one record for each peer that was measured: settings, preparation, and its drafts."""
        notes, records = self.journal.notes(), []
        for peer in self.contenders:
            if isinstance(peer, Peer) and peer.name not in self.failed:
                record = {"method": peer.name, "settings": dict(peer.settings), **notes.get(peer.name, {})}
                records.append(record | {"doubts": list(find_doubts(record))})
        return records

    def _prepare(self, work: Sequence[tuple[Contender, Unit, Sequence[Item]]]) -> None:
        """Let every contender compile what its prompts need, and note how long each peer took."""
        for contender in self._each("compiling"):
            groups = [items for other, unit, items in work if other is contender]
            groups += [[self.copy]] if self.copy else []
            start = perf_counter()
            with self._failing(contender):
                contender.prepare(groups, self.generation)
            if isinstance(contender, Peer):
                self.journal.note(contender.name, {"prepared_seconds": round(perf_counter() - start, 2)})

    def _try_peers(self) -> None:
        """Note the drafts of each peer on the prompt to copy; nothing learned there is kept."""
        for contender in self.contenders:
            if self.copy is None or not isinstance(contender, Peer) or contender.name in self.failed:
                continue
            memory = contender.memory()
            with self._failing(contender):
                (text,) = contender.decode([self.copy], Generation(COPIED_TOKENS))
                contender.restore(memory)
                counts = {"tokens": len(text.tokens), "drafted": text.drafted, "accepted": text.accepted}
                self.journal.note(contender.name, {"drafts": contender.drafts, "copied": counts})

    def _warm_up(self) -> None:
        """Run every code path on a short and a longer prompt, twice; nothing learned there is kept."""
        by_length = sorted(self.items, key=lambda item: len(item.ids))
        some = [by_length[0], by_length[len(by_length) // 2]]
        tokens = min(self.generation.max_new_tokens, WARM_UP_TOKENS)
        generation = replace(self.generation, max_new_tokens=tokens)
        for contender in self._each("warming up"):
            with self._failing(contender):
                for _ in range(2):
                    for item in some:
                        contender.warm([item], generation)
                for batch in self.batches:
                    if 1 < batch <= (contender.max_batch or batch):
                        contender.warm(self.items[:batch], generation)

    def _each(self, what: str) -> Iterator[Contender]:
        """The contenders, with the progress told: before the first text, compilers may take minutes."""
        start, total = perf_counter(), len(self.contenders)
        for at, contender in enumerate(self.contenders):
            left = (perf_counter() - start) / at * (total - at) if at else None
            self.tell(Progress(at, total, contender.name, what, left))
            yield contender

    @contextmanager
    def _failing(self, contender: Contender) -> Iterator[None]:
        """Leave out a peer that fails here; a failure of our own stops the run."""
        try:
            yield
        except Exception as error:
            if contender.engine == "draftwise":
                raise
            self.failed[contender.name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]

    def _write(
        self,
        contender: Contender,
        unit: Unit,
        items: Sequence[Item],
        texts: Sequence[Text],
        samples: set[int],
    ) -> None:
        load: Any = self.meter.sample()
        rows, rounds, pieces = list[Row](), list[Row](), list[Row]()
        for key, item, text in zip(unit.keys, items, texts, strict=True):
            self.times[contender.name, unit.batch].append(text.seconds)
            head: Row = {"method": contender.name, "category": item.category}
            head |= {"batch": unit.batch, "prompt": item.index}
            about = {"key": key, "engine": contender.engine, **head, "question_id": item.question_id}
            facts = {"identical": None, "text_sha": text.sha, "load": load}
            rows.append(about | work_row(text, len(text.tokens)) | facts)
            load = None  # one sample per unit
            rounds += [
                head | {"round": n} | round_row(round, asdict(round.seconds)) | signals
                for n, (round, signals) in enumerate(zip(text.log, text.signals, strict=True))
            ]
            if text.log and item.index in samples and unit.batch == self.batches[0]:
                writer = Writer(self.tokenizer, ())
                for round in text.log:
                    writer.add(round)
                prompt = decode(self.tokenizer, item.ids).strip()
                answer = [[piece.text, piece.source] for piece in writer.output().pieces]
                pieces.append(head | {"prompt_text": prompt, "pieces": answer})
        self.journal.finish(unit, rows, rounds, pieces, contender.memory())

    def _samples(self) -> set[int]:
        first: dict[str, int] = {}
        for item in self.items:
            first.setdefault(item.category, item.index)
        return set(list(first.values())[:SAMPLES])

    def _progress(self, at: int, work: Sequence[tuple[Contender, Unit, Sequence[Item]]]) -> Progress:
        """Seconds left: each unit counts with its method's mean time per prompt so far."""
        contender, _, items = work[at]
        means = {key: sum(times) / len(times) for key, times in self.times.items()}
        unfinished = [unit for _, unit, _ in work[at:] if not self.journal.finished(unit)]
        is_known = all((unit.method, unit.batch) in means for unit in unfinished)
        seconds = (means[unit.method, unit.batch] * len(unit.prompts) for unit in unfinished)
        left = sum(seconds) if is_known else None
        return Progress(at, len(work), contender.name, items[0].category, left)


def find_doubts(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what speaks against a peer having run at its best, one line each."""
    copied = record.get("copied")
    if record.get("drafts") and copied:
        missing = [what for what in ("drafted", "accepted") if not copied[what]]
        yield from (f"it {what} no token of a text to copy" for what in missing[:1])
    if late := record["settings"].get("compiled while measured"):
        yield f"{late} more passes were compiled while it was measured: its times include that"
