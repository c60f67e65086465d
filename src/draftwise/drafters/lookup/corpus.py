"""Reads a corpus of texts for a datastore: text files, JSONL files, and folders of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...inputs import parse_json, whole

SUFFIXES = (".txt", ".jsonl")
Progress = Callable[[str, int, int], None]
"""Called with the name of the current step, its progress, and its total."""


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
) -> tuple[NDArray[np.int32], int]:
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
