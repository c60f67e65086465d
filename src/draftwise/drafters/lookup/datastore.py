"""A text corpus as token ids, with its positions sorted by the tokens before them.

This is a suffix array of the reversed text: positions with similar contexts are adjacent. So the longest
suffix of a text that occurs in the corpus is found by narrowing one interval, token by token, from the last
token backwards. The folder holds `tokens.npy` (the documents, each between two separators whose id, the
vocabulary's size, matches nothing), `order.npy` (the sorted positions), `starts.npy` (where the positions of
each last token begin in the order) and `header.json`. The arrays are memory-mapped.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from ...errors import UserError
from ...inputs import parse_json, whole

FORMAT, VERSION = "draftwise-datastore", 1
DEPTH = 32  # contexts are sorted by this many tokens, which is also the longest possible match
ARRAYS = ("tokens", "order", "starts")
Ints = NDArray[np.int32]
SUFFIXES = (".txt", ".jsonl")
Progress = Callable[[str, int, int], None]
"""Called with the name of the current step, its progress, and its total."""


@dataclass(frozen=True, slots=True)
class Header:
    """The origin of a datastore; `checks` holds the CRC-32 of each array."""

    vocab_size: int
    fingerprint: str
    tokens: int
    documents: int
    checks: Mapping[str, int]
    format: str = FORMAT
    version: int = VERSION


def tokenizer_fingerprint(vocab: Mapping[str, int]) -> str:
    """Return the SHA-256 over the vocabulary's (token, id) pairs in sorted order, in hexadecimal."""
    digest = sha256()
    for token, at in sorted(vocab.items()):
        digest.update(f"{token}\0{at}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class Datastore:
    """A datastore, memory-mapped; its files are read once, to check them.

    Raises:
        UserError: there is none at `path`, another version wrote it, or a file in it is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.header = _header(self.path)
        self.separator = self.header.vocab_size
        arrays = {name: _array(self.path, name, self.header) for name in ARRAYS}
        self.tokens, self.order = arrays["tokens"], arrays["order"]
        # Scalars are read through memoryviews: Python integers, several times faster than array elements.
        self._tokens, self._order, self._starts = (arrays[name].data for name in ARRAYS)

    def check(self, vocab_size: int, fingerprint: str) -> None:
        """Reject a target with another tokenizer than this datastore's; padded vocabularies are allowed.

        Raises:
            UserError: another tokenizer, or ids here that the target does not have.
        """
        header = self.header
        if fingerprint != header.fingerprint or vocab_size < header.vocab_size:
            raise UserError(
                f"the datastore {self.path} is in another vocabulary ({header.vocab_size} tokens, "
                f"{header.fingerprint[:12]}) than the target ({vocab_size} tokens, {fingerprint[:12]}): "
                "build it again with --tokenizer set to the target"
            )

    def find(self, text: Sequence[int], *, most: int = DEPTH) -> tuple[int, int, int]:
        """Return the length of the longest suffix of `text` in the corpus, at most `most` and 32 tokens.

        With it comes the interval of `order` with the positions where it ends: (length, low, high).
        """
        if not text or most < 1 or not 0 <= text[-1] < self.separator:
            return 0, 0, 0
        low, high = self._starts[text[-1]], self._starts[text[-1] + 1]
        length = int(low < high)
        while 0 < length < min(most, len(text), DEPTH):
            first, last = self._interval(text[-1 - length], length, low, high)
            if first == last:
                break
            low, high, length = first, last, length + 1
        return length, low, high

    def _interval(self, token: int, back: int, low: int, high: int) -> tuple[int, int]:
        """Return the part of an interval in which `token` is `back` positions before."""
        if token == self.separator:
            return low, low

        def before(position: int) -> int:
            return self._tokens[position - back]

        first = bisect_left(self._order, token, low, high, key=before)
        return first, bisect_right(self._order, token, first, high, key=before)

    def continuations(self, low: int, high: int, *, most: int, length: int) -> list[list[int]]:
        """Return the `length` tokens after at most `most` positions in an interval, evenly spaced.

        A document's end appears as the separator; ignore the tokens after it.
        """
        slots = np.linspace(low, high - 1, min(most, high - low)).astype(np.int64)
        after = self.order[slots].astype(np.int64)[:, None] + np.arange(1, length + 1)
        rows: list[list[int]] = self.tokens[np.minimum(after, len(self.tokens) - 1)].tolist()
        return rows


def build(
    corpus: Iterable[str | Path],
    out: str | Path,
    *,
    encode: Callable[[str], list[int]],
    vocab_size: int,
    fingerprint: str,
    progress: Progress | None = None,
) -> Header:
    """Build a datastore at `out` from text and JSONL files, or folders of them.

    It is written beside `out` and renamed when complete, so an interrupted build leaves nothing. It takes
    about 60 bytes of memory per token, and 8 on disk.

    Raises:
        UserError: `out` exists, or the corpus is missing, unreadable, broken or empty.
    """
    out = Path(out)
    if out.exists():
        raise UserError(f"{out} exists already: remove it, or choose another folder")
    tokens, documents = encode_corpus(corpus, encode=encode, vocab_size=vocab_size, progress=progress)
    order = sort_contexts(tokens, progress=progress)
    starts = np.searchsorted(tokens[order], np.arange(vocab_size + 2)).astype(np.int32)
    arrays = {"tokens": tokens, "order": order, "starts": starts}
    checks = {name: zlib.crc32(values.data) for name, values in arrays.items()}
    header = Header(vocab_size, fingerprint, len(tokens) - documents - 1, documents, checks)
    part = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        part.mkdir(parents=True, exist_ok=True)  # a killed process may have had this number, too
        for name, values in arrays.items():
            np.save(part / f"{name}.npy", values, allow_pickle=False)
        (part / "header.json").write_text(json.dumps(asdict(header), indent=1) + "\n", encoding="utf-8")
        part.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return header


def sort_contexts(tokens: Ints, *, depth: int = DEPTH, progress: Progress | None = None) -> Ints:
    """Return the positions of `tokens`, sorted by their token, then by the previous one, up to `depth` back.

    Prefix doubling on the reversed text (Manber and Myers 1993). Ties keep the order of that text.
    """
    n, sorted_by = len(tokens), 1
    key = tokens[::-1].astype(np.int64)
    while True:
        order = np.argsort(key, kind="stable")
        new = np.diff(key[order], prepend=-1) != 0
        if progress:
            progress("sorting", int(new.sum()), n)
        if sorted_by >= depth or new.all():
            return (n - 1 - order).astype(np.int32)
        rank = np.zeros(n + 1, np.int64)  # from 1; 0 = no token
        rank[order] = np.cumsum(new)
        key = rank[:n] * (n + 1) + rank[np.minimum(np.arange(n) + sorted_by, n)]
        sorted_by *= 2


# -- the corpus -------------------------------------------------------------------------------------------


def corpus_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the `.txt` and `.jsonl` files among `paths` and, recursively, in the folders among them.

    Raises:
        UserError: a path does not exist, is of another kind, or is a folder without such files.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())
            if not inside:
                raise UserError(f"no {' or '.join(SUFFIXES)} file in {path}: choose another folder")
            files += inside
        elif not path.is_file():
            raise UserError(f"no corpus at {path}: give a file or a folder")
        elif path.suffix not in SUFFIXES:
            raise UserError(f"{path} is neither {' nor '.join(SUFFIXES)}: rename or convert it")
        else:
            files.append(path)
    return files


def read_texts(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the documents of one file, each with its number of bytes in the file.

    A `.txt` file is one document. Each line of a `.jsonl` file is one: `prompt` and `completion` joined, or
    `text`.

    Raises:
        UserError: the file cannot be read, is not UTF-8, or has a line without those fields.
    """
    try:
        with file.open("rb") as stream:
            if file.suffix == ".txt":
                data = stream.read()
                yield data.decode("utf-8"), len(data)
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _document(line.decode("utf-8"), f"{file}:{number}"), len(line)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 ({error.reason}): convert it") from error


def encode_corpus(
    paths: Iterable[str | Path],
    *,
    encode: Callable[[str], list[int]],
    vocab_size: int,
    progress: Progress | None = None,
) -> tuple[Ints, int]:
    """Return the token ids of all documents, with a separator (`vocab_size`) around each; and their number.

    Raises:
        UserError: the corpus cannot be read or holds no tokens, or an id is outside the vocabulary.
    """
    files = corpus_files(paths)
    done, size = 0, sum(f.stat().st_size for f in files)
    ids, documents = array("i", [vocab_size]), 0
    for file in files:
        for text, read in read_texts(file):
            new = encode(text)
            if new:
                if min(new) < 0 or max(new) >= vocab_size:
                    raise UserError(f"the tokenizer made ids outside its {vocab_size} tokens from {file}")
                ids.extend(new)
                ids.append(vocab_size)
                documents += 1
            done += read
            if progress:
                progress("reading", done, size)
    if not documents:
        raise UserError("the corpus holds no text: give files with some")
    if len(ids) >= 2**31:
        raise UserError(f"the corpus has {len(ids)} tokens and a datastore holds {2**31}: give less text")
    return np.frombuffer(ids, np.int32), documents


def _document(line: str, where: str) -> str:
    try:
        row = parse_json(line)
        text = row["text"] if "text" in row else row["prompt"] + row["completion"]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str):
        raise UserError(f'{where}: write one JSON object a line, with "prompt" and "completion", or "text"')
    return whole(text, where)


# -- the files --------------------------------------------------------------------------------------------


def _header(path: Path) -> Header:
    try:
        header = Header(**parse_json((path / "header.json").read_text(encoding="utf-8")))
        sizes = (header.vocab_size, header.tokens, header.documents, *(header.checks[a] for a in ARRAYS))
        right = (header.format, header.version) == (FORMAT, VERSION) and isinstance(header.fingerprint, str)
        if right and all(isinstance(n, int) and n >= 0 for n in sizes):
            return header
    except FileNotFoundError:
        raise UserError(f"no datastore at {path}: make one with `draftwise datastore build`") from None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise _damaged(path / "header.json")


def _array(path: Path, name: str, header: Header) -> Ints:
    n = header.vocab_size + 2 if name == "starts" else header.tokens + header.documents + 1
    file = path / f"{name}.npy"
    try:
        values = open_memmap(file, mode="r")
    except Exception as error:  # NumPy's reader of headers raises whatever Python's parser does
        raise _damaged(file) from error
    if values.dtype != np.int32 or values.shape != (n,) or zlib.crc32(values.data) != header.checks[name]:
        raise _damaged(file)
    return np.asarray(values)


def _damaged(file: Path) -> UserError:
    return UserError(
        f"{file} is damaged, foreign or of another version: build it again with `draftwise datastore build`"
    )
