"""A trace on disk: a folder with one header, one file per prompt, and the measured costs.

    trace.json      the header: target, drafters, longest draft, settings
    000000.npz ...  one prompt each (`Recording`), arrays only, written atomically
    costs.json      seconds of every part of a round (`draftwise.measure.trace.costs`)

A recording has `prompt` and `text` (token ids; the text continues for up to `length` tokens after its end, as
drafts may), `about` (its name, category, committed tokens and budget, as JSON), and for drafter number i the
arrays `i.NAME` of its `Answers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy.typing import NDArray

from ... import registry
from ...core.roles import Matcher
from ...errors import UserError
from ...inputs import parse_json
from ...policies.catalogue import weighs_cascades
from ...registry.cascades import with_lookup
from ..writing import replacing, write_text
from .limits import check

FORMAT, VERSION = "draftwise-trace", 1
FIELDS = ("top1", "top2", "entropy", "chosen")  # the stop signals in a trace

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The settings of a recording.

    `drafters` maps each name to whether it grades itself, `length` is the longest draft recorded, and
    `overlap` says whether raw overlaps were recorded. `digest` is a hash of the prompts' tokens.
    """

    target: str
    drafters: Mapping[str, bool]
    workload: str
    prompts: int
    digest: str
    length: int
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    overlap: bool = False
    vocab_size: int = 0
    eos: Sequence[int] = ()
    format: str = FORMAT
    version: int = VERSION

    @property
    def greedy(self) -> bool:
        """Whether the text is greedy; otherwise it was sampled."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The drafts, signals and grades of one drafter at every position of one text.

    All its drafted tokens are in one array of N `tokens`. Its draft at position t of at most L tokens
    consists of `count[t, L - 1]` of them from `start[t, L - 1]` on. A model's drafts overlap there, since a
    draft that matches the text continues in the next position's draft. `signals`, shape (N, 4), are `FIELDS`
    of each token; `overlap`, shape (N,), is the raw overlap (1 - TV at temperature 1) of target and drafter
    there, empty unless recorded; `hint`, shape (n,), is the drafter's hint before each position.

    For a sampled text, a model has no drafts but `accept` and `shared`, one for every token of the text: the
    probability that its own draft was accepted given the text, and the overlap of the distributions sampled
    from. A lookup has its drafts, and in `chance`, shape (N,), the target's probability of each token up to
    the first that differs from the text.
    """

    tokens: Ints
    start: Ints
    count: Ints
    hint: Floats
    signals: Floats
    overlap: Floats = field(default_factory=lambda: np.zeros(0))
    accept: Floats = field(default_factory=lambda: np.zeros(0))
    shared: Floats = field(default_factory=lambda: np.zeros(0))
    chance: Floats = field(default_factory=lambda: np.zeros(0))


ARRAYS = tuple(f.name for f in fields(Answers))
ABOUT = ("name", "category", "committed", "budget", "ended", "given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One prompt: its text, whose first `committed` tokens are the answer, and every drafter's answers.

    `budget` is the maximum number of tokens; `ended` whether the text ended by itself before that. `given`
    says for each drafter which signals its drafts have, by the signal that a stop rule reads ("" is no rule
    at all, null no signals); it is null if nothing was drafted. `probs` are the target's probabilities of the
    text's tokens if it was sampled, else empty.
    """

    name: str
    category: str
    prompt: Ints
    text: Ints
    committed: int
    budget: int
    ended: bool
    probs: Floats
    given: Mapping[str, Mapping[str, Sequence[str] | None] | None]
    answers: Mapping[str, Answers]


class Trace:
    """A finished trace, read prompt by prompt; if `drafters` are named, as if only these had been recorded.

    Named `cascades` of recorded drafters need no recording: a replay makes their drafts from those of their
    parts.

    Raises:
        UserError: no trace in the folder, one of another version, a damaged or an unfinished one, or one
            without a named drafter.
    """

    def __init__(self, folder: str | Path, drafters: Sequence[str] = ()) -> None:
        self.folder = Path(folder)
        self._whole = read_header(self.folder)
        known = self._whole.drafters
        self.cascades = [name for name in drafters if name not in known and is_cascade(name)]
        drafters = [name for name in drafters if name not in self.cascades]
        if unknown := [name for name in drafters if name not in known]:
            raise UserError(f"drafter {unknown[0]!r} was not recorded: choose from {', '.join(known)}")
        self.header = replace(self._whole, drafters={name: known[name] for name in drafters or known})
        missing = [i for i in range(self.header.prompts) if not file_of(self.folder, i).is_file()]
        if missing:
            done = self.header.prompts - len(missing)
            raise UserError(
                f"the trace {str(folder)!r} has {done} of its {self.header.prompts} prompts: "
                "run the same `draftwise trace` again to finish it"
            )

    @property
    def drafters(self) -> list[str]:
        """The recorded drafters, in their order, and the cascades."""
        return [*self.header.drafters, *self.cascades]

    def team(self, policy: str) -> list[str]:
        """The drafters of a live run by this policy: with cascades that it weighs, where texts are greedy.

        Raises:
            UserError: an unknown policy or option.
        """
        if not (self.header.greedy and weighs_cascades(policy)):
            return self.drafters
        models = [name for name, grades in self.header.drafters.items() if grades]
        lookups = [name for name in self.header.drafters if name not in models and _matches(name)]
        return [*self.drafters, *with_lookup(models, lookups, self.drafters)]

    def __len__(self) -> int:
        return self.header.prompts

    def __iter__(self) -> Iterator[Recording]:
        names = self.header.drafters
        for i in range(len(self)):
            found = load(file_of(self.folder, i), self._whole)
            yield replace(
                found,
                given={name: found.given[name] for name in names},
                answers={name: found.answers[name] for name in names},
            )


def _matches(name: str) -> bool:
    """Whether a lookup of this name can take over from a model."""
    kind = registry.parse(name).name
    factory: Any = registry.load("drafters", kind) if kind in registry.names("drafters") else None
    return isinstance(factory, type) and issubclass(factory, Matcher)


def is_cascade(name: str) -> bool:
    """Whether a drafter of this name lets one drafter of the team continue another's draft."""
    return registry.parse(name).name == "cascade"


def file_of(folder: Path, index: int) -> Path:
    """The file of prompt number `index`."""
    return folder / f"{index:06d}.npz"


def read_header(folder: Path) -> Header:
    """The header of the trace in a folder.

    Raises:
        UserError: there is none, or it is damaged or of another version.
    """
    path = folder / "trace.json"
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        said = (found.get("format"), found.get("version")) if isinstance(found, dict) else None
        if said != (FORMAT, VERSION):
            raise UserError(f"it is no {FORMAT} of version {VERSION}")
        header = Header(**found)
        check(header)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UserError(
            f"cannot read the trace {str(path)!r}: {reason}; record one with `draftwise trace --out {folder}`"
        ) from None
    return header


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def as_json(header: Header) -> dict[str, Any]:
    """A header as written to the file."""
    return asdict(header) | {"eos": sorted(header.eos)}


def save(recording: Recording, path: Path, header: Header) -> None:
    """Write a recording atomically; integers in 32 bits, floats in 32 if nothing is lost."""
    about = {key: getattr(recording, key) for key in ABOUT}
    arrays: dict[str, Any] = {
        "prompt": recording.prompt,
        "text": recording.text,
        "probs": _packed(recording.probs),
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
    }
    for i, name in enumerate(header.drafters):
        for key in ARRAYS:
            arrays[f"{i}.{key}"] = _packed(getattr(recording.answers[name], key))
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path, header: Header) -> Recording:
    """Read a recording.

    Raises:
        UserError: it is damaged, or does not belong to this trace.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]))
            answers = {
                name: Answers(**{key: _array(key, file[f"{i}.{key}"]) for key in ARRAYS})
                for i, name in enumerate(header.drafters)
            }
            prompt, text = _array("tokens", file["prompt"]), _array("tokens", file["text"])
            probs = _array("probs", file["probs"])
            recording = Recording(prompt=prompt, text=text, probs=probs, answers=answers, **about)
        _check(recording, header)
    except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, ZlibError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"the recording {str(path)!r} is damaged or of another trace ({reason}): "
            "remove it and run the same `draftwise trace` again"
        ) from None
    return recording


def _check(recording: Recording, header: Header) -> None:
    n, size = recording.committed, recording.prompt.size
    if not (0 < n <= recording.text.size and n <= recording.budget <= header.max_new_tokens and size):
        raise ValueError(f"{n} of {recording.text.size} tokens, {recording.budget} allowed")
    if recording.probs.size != (0 if header.greedy else recording.text.size):
        raise ValueError("the chances of its tokens are missing")
    for name, a in recording.answers.items():
        total, drawn = a.tokens.size, header.drafters[name] and not header.greedy
        shapes = [a.start.shape, a.count.shape, a.hint.shape, a.signals.shape]
        if shapes != [(n, header.length)] * 2 + [(n,), (total, len(FIELDS))]:
            raise ValueError(f"the arrays of {name} do not fit together")
        graded = recording.text.size if drawn else 0
        sizes = [a.overlap.size, a.accept.size, a.shared.size, a.chance.size]
        wanted = [total * header.overlap, graded, graded, 0 if header.greedy else total]
        if sizes != wanted:
            raise ValueError(f"the numbers of {name} do not fit its tokens")
        ends = a.start + a.count
        if a.count.size and (a.count.min() < 0 or a.start.min() < 0 or ends.max() > total):
            raise ValueError(f"drafts of {name} lie outside its tokens")


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype != np.float64:
        return array.astype(np.int32)
    short = array.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), array, equal_nan=True) else array


def _array(key: str, found: NDArray[Any]) -> NDArray[Any]:
    whole = key in ("tokens", "start", "count")
    if not np.issubdtype(found.dtype, np.integer if whole else np.floating):
        raise ValueError(f"{key} is {found.dtype}")
    return found.astype(np.int32 if whole else np.float64)
