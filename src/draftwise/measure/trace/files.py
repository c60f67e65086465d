"""A trace on disk: a folder with one header, one file per prompt, and the measured costs.

    trace.json      the header: target, drafters, longest draft, settings
    000000.npz ...  one prompt each (`Recording`), arrays only, written atomically
    costs.json      seconds of every part of a round (`draftwise.measure.trace.costs`)
    texts.json      a few texts as words, so that a replay needs no tokenizer to show who proposed what

A recording has `prompt` and `text` (token ids; the text continues for up to `length` tokens after its end, as
drafts may), `about` (its name, category, committed tokens and budget, as JSON), and for drafter number i the
arrays `i.NAME` of its `RecordedDrafts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy.typing import NDArray

from ... import registry
from ...core.roles import Matcher
from ...core.sampling import Sampling
from ...errors import UserError
from ...generation.text import Detokenizer, decode
from ...inputs import parse_json
from ...policies.catalogue import weighs_cascades
from ...specs import name_cascades, parse_drafter
from ...writing import replacing, write_json

FORMAT, VERSION = "draftwise-trace", 1
FIELDS = ("top1", "top2", "entropy", "chosen")  # the stop signals in a trace
LONGEST = 4096  # tokens of a draft; every length has its own column at each position of a text
SAMPLES = 4  # texts whose words are kept, each of another category
RANGES: Mapping[str, tuple[Any, float, float]] = {  # of numbers in a header
    "prompts": (int, 1, 999_999),  # as many as the names of files can number
    "length": (int, 1, LONGEST),
    "max_new_tokens": (int, 1, 2**31),
    "vocab_size": (int, 0, 2**31),
    "seed": (int, -inf, inf),
    "temperature": ((int, float), 0.0, 1e308),
}

DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, BadZipFile, ZlibError)
"""What reading a file raises that is no recording."""

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Given: TypeAlias = Mapping[str, Sequence[str] | None]
"""The signals that drafts have (None for none), by the signal that a stop rule reads ("" is no rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The settings of a recording.

    `drafters` maps each name to whether it grades itself, `length` is the longest draft recorded, and
    `overlap` says whether raw overlaps were recorded. `digest` is a hash of the prompts' tokens. `waits` are
    the drafters that are not ready in a text's first round. `load` is how the models were loaded and run.
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
    waits: Sequence[str] = ()
    load: Mapping[str, Any] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def sampling(self) -> Sampling:
        """The sampling settings of its texts, without a seed: each has its own."""
        eos, tokens = frozenset(self.eos), self.max_new_tokens
        return Sampling(max_new_tokens=tokens, temperature=self.temperature, eos=eos)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDrafts:
    """The drafts, signals and grades of one drafter at every position of one text.

    All its drafted tokens are in one array of N `tokens`. Its draft at position t of at most L tokens
    consists of `count[t, L - 1]` of them from `start[t, L - 1]` on. A model's drafts overlap there, since a
    draft that matches the text continues in the next position's draft. `signals`, shape (N, 4), are `FIELDS`
    of each token; `overlap`, shape (N,), is the raw overlap (1 - TV at temperature 1) of target and drafter
    there, empty unless recorded; `hint`, shape (n,), is the drafter's hint before each position.

    For a sampled text, a model has `accept` and `shared`, one for every token of the text: the probability
    that its own draft was accepted given the text, and the overlap of the distributions sampled from. It has
    no drafts unless it is a head, of which a draft was sampled given the text at each position. A head and a
    lookup have in `chance`, shape (N,), the target's probability of each drafted token up to the first that
    differs from the text. `given` is None if nothing was drafted.
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
    given: Given | None = None


ARRAYS = tuple(f.name for f in fields(RecordedDrafts))[:-1]
ABOUT = ("name", "category", "committed", "budget", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One prompt: its text, whose first `committed` tokens are the answer, and every drafter's drafts.

    `budget` is the maximum number of tokens; `ended` is true if the text ended by itself before that. `probs`
    are the target's probabilities of the text's tokens if it was sampled, else empty.
    """

    name: str
    category: str
    prompt: Ints
    text: Ints
    committed: int
    budget: int
    ended: bool
    probs: Floats
    drafts: Mapping[str, RecordedDrafts]


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
        recorded = self._whole.drafters
        self.cascades = [name for name in drafters if name not in recorded and is_cascade(name)]
        drafters = [name for name in drafters if name not in self.cascades]
        if unknown := [name for name in drafters if name not in recorded]:
            raise UserError(f"drafter {unknown[0]!r} was not recorded: choose from {', '.join(recorded)}")
        self.header = replace(self._whole, drafters={name: recorded[name] for name in drafters or recorded})
        prompts = self.header.prompts
        done = sum(file_of(self.folder, i).is_file() for i in range(prompts))
        if done < prompts:
            raise UserError(
                f"the trace {str(folder)!r} has {done} of its {prompts} prompts: "
                "run the same `draftwise trace` again to finish it"
            )

    @property
    def drafters(self) -> list[str]:
        """The recorded drafters, in their order, and the cascades."""
        return [*self.header.drafters, *self.cascades]

    def team(self, policy: str) -> list[str]:
        """Return the drafters of a live run by this policy: with cascades that it weighs, in greedy texts."""
        if not (self.header.greedy and weighs_cascades(policy)):
            return self.drafters
        models = [name for name, grades in self.header.drafters.items() if grades]
        lookups = [name for name in self.header.drafters if name not in models and _can_take_over(name)]
        return [*self.drafters, *name_cascades(models, lookups, self.drafters)]

    def __len__(self) -> int:
        return self.header.prompts

    def __iter__(self) -> Iterator[Recording]:
        names = self.header.drafters
        for i in range(len(self)):
            recording = load(file_of(self.folder, i), self._whole)
            yield replace(recording, drafts={name: recording.drafts[name] for name in names})


def _can_take_over(name: str) -> bool:
    """Return whether a lookup of this name can continue a model's draft."""
    factory: Any = registry.load("drafters", parse_drafter(name).name)
    return isinstance(factory, type) and issubclass(factory, Matcher)


def is_cascade(name: str) -> bool:
    """Return whether a drafter of this name lets one drafter of the team continue another's draft."""
    return parse_drafter(name).name == "cascade"


def file_of(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.npz"


def check_recordable(length: int) -> None:
    """Check the options of a recording before models are loaded."""
    if not 1 <= length <= LONGEST:
        raise UserError(f"--length {length}: give 1 to {LONGEST}")


def read_header(folder: Path) -> Header:
    """Read the header of the trace in a folder."""
    path = folder / "trace.json"
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        kind = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
        if kind != (FORMAT, VERSION):
            raise UserError(f"it is no {FORMAT} of version {VERSION}")
        header = Header(**content)
        check_header(header)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UserError(
            f"cannot read the trace {str(path)!r}: {reason}; record one with `draftwise trace --out {folder}`"
        ) from None
    return header


def check_header(header: Any) -> None:
    """Refuse a header with values that no recording has; true and false are no numbers here."""
    for key, (kind, least, most) in RANGES.items():
        value = getattr(header, key)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise ValueError(f"its {key} {value!r:.40} is not from {least} to {most}")
    for key in ("target", "workload", "digest"):
        if not isinstance(getattr(header, key), str):
            raise ValueError(f"its {key} is no text")
    if not (isinstance(header.eos, list) and all(type(token) is int for token in header.eos)):
        raise ValueError("its eos is damaged")
    if not all(isinstance(value, bool) for value in (header.overlap, *header.drafters.values())):
        raise ValueError("its overlap or drafters are damaged")
    if not isinstance(header.waits, (list, tuple)) or not set(header.waits) <= {*header.drafters}:
        raise ValueError("its waits are damaged")
    if not isinstance(header.load, dict):
        raise ValueError("its load is damaged")


def header_json(header: Header) -> dict[str, Any]:
    return asdict(header) | {"eos": sorted(header.eos), "waits": list(header.waits)}


def save(recording: Recording, path: Path, header: Header) -> None:
    """Write a recording atomically; integers in 32 bits, floats in 32 if nothing is lost."""
    about: dict[str, Any] = {key: getattr(recording, key) for key in ABOUT}
    about["given"] = {name: recording.drafts[name].given for name in header.drafters}
    arrays: dict[str, Any] = {
        "prompt": recording.prompt,
        "text": recording.text,
        "probs": _packed(recording.probs),
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
    }
    for i, name in enumerate(header.drafters):
        for key in ARRAYS:
            arrays[f"{i}.{key}"] = _packed(getattr(recording.drafts[name], key))
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path, header: Header, prompt: Sequence[int] | None = None) -> Recording:
    """Read a recording, which must be of this prompt if one is given."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(bytes(file["about"]))
            given, drafts = about.pop("given"), {}
            for i, name in enumerate(header.drafters):
                arrays = {key: _array(key, file[f"{i}.{key}"]) for key in ARRAYS}
                drafts[name] = RecordedDrafts(**arrays, given=given[name])
            tokens, text = _array("tokens", file["prompt"]), _array("tokens", file["text"])
            probs = _array("probs", file["probs"])
            recording = Recording(prompt=tokens, text=text, probs=probs, drafts=drafts, **about)
        _check(recording, header)
        if prompt is not None and recording.prompt.tolist() != list(prompt):
            raise ValueError("its prompt is another one")
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"the recording {str(path)!r} is damaged or of another trace ({reason}): "
            "remove it and run the same `draftwise trace` again"
        ) from None
    return recording


def _check(recording: Recording, header: Header) -> None:
    n, size, greedy = recording.committed, recording.text.size, header.greedy
    if not (0 < n <= size and n <= recording.budget <= header.max_new_tokens and recording.prompt.size):
        raise ValueError(f"{n} of {size} tokens, {recording.budget} allowed")
    if recording.probs.size != (0 if greedy else size):
        raise ValueError("the probabilities of its tokens are missing")
    for name, a in recording.drafts.items():
        total, graded = a.tokens.size, size if header.drafters[name] and not greedy else 0
        shapes = [getattr(a, key).shape for key in ARRAYS[1:]]
        table, overlaps, chances = (n, header.length), total * header.overlap, 0 if greedy else total
        rest = [(n,), (total, len(FIELDS)), (overlaps,), (graded,), (graded,), (chances,)]
        if shapes != [table, table, *rest]:
            raise ValueError(f"the arrays of {name} do not fit together")
        if a.count.size and (min(a.count.min(), a.start.min()) < 0 or (a.start + a.count).max() > total):
            raise ValueError(f"drafts of {name} lie outside its tokens")


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype != np.float64:
        return array.astype(np.int32)
    short = array.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), array, equal_nan=True) else array


def _array(key: str, array: NDArray[Any]) -> NDArray[Any]:
    is_whole = key in ("tokens", "start", "count")
    if not np.issubdtype(array.dtype, np.integer if is_whole else np.floating):
        raise ValueError(f"{key} is {array.dtype}")
    return array.astype(np.int32 if is_whole else np.float64)


def write_samples(trace: Trace, tokenizer: Any) -> None:
    """Write the words of the first text of some categories, unless they are there."""
    if (trace.folder / "texts.json").is_file():
        return
    samples: dict[str, Any] = {}
    categories: set[str] = set()
    for i, recording in enumerate(trace):
        if recording.category not in categories:
            categories.add(recording.category)
            prompt = decode(tokenizer, recording.prompt.tolist()).strip()
            answer = split_words(recording.text[: recording.committed].tolist(), tokenizer)
            samples[str(i)] = {"prompt": prompt, "words": answer}
        if len(categories) == SAMPLES:
            break
    write_json(trace.folder / "texts.json", samples)


def split_words(tokens: Sequence[int], tokenizer: Any) -> list[str]:
    """Return the text that each token added; a character of several tokens belongs to the last one."""
    writer = Detokenizer(tokenizer)
    words = ["".join(piece.text for piece in writer.push([token], "")) for token in tokens]
    words[-1] += "".join(piece.text for piece in writer.flush())
    return words


def read_samples(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Read prompts and words of the sample texts, by the prompt's index; empty if none were written."""
    path = folder / "texts.json"
    if not path.is_file():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return {key: (str(text["prompt"]), list(map(str, text["words"]))) for key, text in content.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(
            f"{str(path)!r} is damaged: remove it and run the same `draftwise trace` again"
        ) from None
