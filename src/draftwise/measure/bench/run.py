"""One benchmark, from its settings to `results.json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...core.roles import window_of
from ...core.sampling import Sampling
from ...errors import UserError
from ...models.threads import THREADS
from ...policies.catalogue import method
from .. import machine
from ..machine import judge
from ..named import once
from ..results import BASELINE, identical, summarize
from ..workloads import choose, load
from ..writing import write_json
from .contender import Contender, Generation, Item
from .journal import Journal, begun_with, usable
from .ours import Models, Policy
from .peers import Absent, Peers
from .runner import Progress, Runner, copying


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
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "per_category"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: give a whole number, or 0 for no limit")
        if not self.batch or min(self.batch) < 1 or len(set(self.batch)) < len(self.batch):
            raise UserError(f"batch={','.join(map(str, self.batch))}: give sizes of at least 1, each once")
        for name in ("policies", "peers"):
            once(name, getattr(self, name))
        Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature)

    @property
    def load(self) -> dict[str, Any]:
        """The options for loading models."""
        names = ("dtype", "device", "compile", "trust_remote_code")
        return {name: getattr(self, name) for name in names}


def bench(
    settings: Settings, out: Path, *, tell: Callable[[Progress], None], models: Models | None = None
) -> dict[str, Any]:
    """Measure, or resume an interrupted run, and write `results.json`; returns its content.

    `models` are loaded by name unless given.

    Raises:
        UserError: bad settings, names or files, or a folder that belongs to another run.
    """
    usable(out)
    for name in settings.policies if models is None else ():
        method(name, settings.drafters)  # its options are refused before anything is loaded
    load_average = machine.load_average()
    prompts = choose(
        load(settings.workload, seed=settings.seed),
        split=settings.split,
        per_category=settings.per_category,
        limit=settings.limit,
    )
    THREADS.keep(begun_with(out))
    models = models or Models.load(settings.target, settings.drafters, **settings.load)
    items, left_out = _items(prompts, models, settings)
    peers = Peers(models, settings.target, settings.drafters, settings.load)
    try:
        contenders, absent = _contenders(settings, models, peers)
        facts = machine.describe() | {"packed": models.layouts(), "compiled": models.compiled()}
        journal = Journal(out, _identity(settings, items, facts), load=load_average)
        generation = Generation(settings.max_new_tokens, settings.temperature, settings.seed)
        meter = machine.Meter({child.process.pid for child in peers.children})
        runner = Runner(contenders, items, generation, settings.batch, journal, models.tokenizer, meter, tell)
        runner.copy = copying(models, settings.raw) if settings.peers else None
        try:
            runner.run()
            results = _results(settings, runner, absent, facts) | {"left_out": left_out}
            write_json(out / "results.json", results)
        finally:
            journal.close()
    finally:
        peers.close()
    return results


def _items(prompts: Sequence[Any], models: Models, settings: Settings) -> tuple[list[Item], list[str]]:
    """The prompts as token ids; prompts that leave no room for an answer are excluded and listed."""
    items, left_out = [], []
    window = window_of(models.target)
    for index, prompt in enumerate(prompts):
        ids = models.encode(prompt, raw=settings.raw)
        if len(ids) + settings.max_new_tokens > window:
            left_out.append(
                f"{prompt.category} {prompt.question_id}: {len(ids)} tokens and {settings.max_new_tokens} "
                f"new ones do not fit the window of {window}"
            )
        else:
            items.append(Item(index, prompt.question_id, prompt.category, tuple(ids)))
    if not items:
        raise UserError(f"no prompt fits the target's window: {left_out[0]}")
    return items, left_out


def _contenders(settings: Settings, models: Models, peers: Peers) -> tuple[list[Contender], list[Absent]]:
    policies = dict.fromkeys([BASELINE, *settings.policies])
    contenders: list[Contender] = [Policy(name, models, seed=settings.seed) for name in policies]
    absent = []
    for name in settings.peers:
        built = peers.build(name)
        if isinstance(built, Absent):
            absent.append(built)
        else:
            contenders.append(built)
    return contenders, absent


def _identity(settings: Settings, items: Sequence[Item], facts: dict[str, Any]) -> dict[str, Any]:
    """Return what must be unchanged to resume a run: its settings, prompts and machine."""
    digest = sha256(repr([(i.category, i.ids) for i in items]).encode()).hexdigest()[:16]
    same = {"cpu": facts["cpu"], "threads": facts["threads"], "gpu": facts["gpu"]}
    own = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(settings).items()}
    return own | {"prompts_sha": digest} | same | {"versions": facts["versions"]}


def _too_large(contenders: Sequence[Contender], batches: Sequence[int]) -> list[Absent]:
    return [
        Absent(c.name, f"at batch {b}: it takes at most {c.most()} prompt{'s' * (c.most() > 1)} at a time")
        for c in contenders
        for b in batches
        if 0 < c.most() < b
    ]


def _results(
    settings: Settings, runner: Runner, absent: Sequence[Absent], facts: dict[str, Any]
) -> dict[str, Any]:
    """The content of `results.json`; marks in `prompts.jsonl` which texts equal those of plain decoding."""
    journal, greedy = runner.journal, settings.temperature == 0
    rows = identical(journal.rows()) if greedy else journal.rows()
    journal.rewrite(rows)
    failed = [Absent(name, reason) for name, reason in runner.failed.items()]
    gone = [*absent, *failed, *_too_large(runner.contenders, settings.batch)]
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
        "absent": [asdict(a) for a in gone],
    }
