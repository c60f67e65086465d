"""A Transformers tokenizer as the metadata of a GGUF file: tokens, merges, special tokens, chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...errors import UserError
from .library import EXTRA

BYTES, SENTENCES = "gpt2", "llama"  # tokenizer.ggml.model: byte-level BPE, and BPE as SentencePiece has it
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "mask")


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says about its tokenizer, all but the name of its pre-tokenizer."""

    model: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None
    merges: list[str]
    special: Mapping[str, int]
    adds: tuple[bool, bool]  # whether a text gets the first and the last token of every text
    prefixed: bool  # whether a text gets a space in front
    template: str | None
    notes: list[str] = field(default_factory=list)


def writer_module() -> Any:
    """The module `gguf`, llama.cpp's own writer of such files.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module("gguf")
    except ImportError as error:
        raise UserError(f"the package gguf is not installed ({error}): {EXTRA}") from error


def read(tokenizer: Any, size: int) -> Vocabulary:
    """The vocabulary of a tokenizer for a model with `size` embeddings; ids without a token are padding.

    Raises:
        UserError: a tokenizer of another kind than BPE, or with more tokens than embeddings.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{type(tokenizer).__name__} has no tokenizer.json: only BPE from one is converted")
    spec = json.loads(backend.to_str())
    model = spec["model"]
    fallback = bool(model.get("byte_fallback"))
    byte_level = "ByteLevel" in {part["type"] for part in _parts(spec.get("pre_tokenizer"))}
    if model["type"] != "BPE" or not (byte_level or fallback):
        how = "neither byte-level nor with byte fallback" if model["type"] == "BPE" else "not BPE"
        raise UserError(f"a tokenizer of type {model['type']} ({how}) is not converted: only BPE is")
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    if max(names) >= size:
        raise UserError(f"the tokenizer has ids up to {max(names)} and the model {size} embeddings")
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ", 1)) for m in model["merges"]]
    added, types = tokenizer.added_tokens_decoder, writer_module().TokenType
    unknown = str(model.get("unk_token") or "") if fallback and not byte_level else None
    return Vocabulary(
        model=BYTES if byte_level else SENTENCES,
        tokens=_padded(names, size),
        kinds=[_kind(names.get(i), added.get(i), unknown, types) for i in range(size)],
        scores=None if byte_level else _scores(names, pairs, size),
        merges=[" ".join(pair) for pair in pairs] if byte_level else [],
        special=_special(tokenizer),
        adds=_adds(tokenizer),
        prefixed=not byte_level and _prefixed(spec),
        template=_template(tokenizer),
        notes=_notes(spec, byte_level),
    )


def write(writer: Any, vocabulary: Vocabulary, pre: str) -> None:
    """Give a `GGUFWriter` this vocabulary and its pre-tokenizer's name."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges or vocabulary.model == BYTES:
        writer.add_token_merges(vocabulary.merges)
    for name, token in vocabulary.special.items():
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(vocabulary.adds[0])
    writer.add_add_eos_token(vocabulary.adds[1])
    if vocabulary.model == SENTENCES:
        writer.add_add_space_prefix(vocabulary.prefixed)
    if vocabulary.template:
        writer.add_chat_template(vocabulary.template)


def normalizer(tokenizer: Any) -> Any:
    """The Unicode normal form that a tokenizer applies and llama.cpp does not; None if there is none."""
    backend = tokenizer.backend_tokenizer
    spec = json.loads(backend.to_str())
    forms = {part["type"] for part in _parts(spec.get("normalizer"))}
    return backend.normalizer if forms & set(FORMS) and forms <= {*FORMS, "Sequence"} else None


def _parts(spec: Any) -> Iterator[dict[str, Any]]:
    """A component of a tokenizer and, if it is a sequence, its parts."""
    if spec:
        yield spec
        for key in ("pretokenizers", "normalizers", "decoders", "processors"):
            for part in spec.get(key) or ():
                yield from _parts(part)


def _padded(names: Mapping[int, str], size: int) -> list[str]:
    """Every token's name; names of padding differ from all others, as llama.cpp demands."""
    taken, tokens = set(names.values()), []
    for i in range(size):
        name = names.get(i)
        if name is None:
            name = f"[PAD{i}]"
            while name in taken:
                name += "_"
        tokens.append(name)
    return tokens


def _kind(name: str | None, added: Any, unknown: str | None, types: Any) -> int:
    """The type of one token; `unknown` is the unknown token of a tokenizer with byte fallback."""
    if name is None:
        return int(types.UNUSED)
    if unknown is not None and name == unknown:
        return int(types.UNKNOWN)
    if added is not None:
        return int(types.CONTROL if added.special else types.USER_DEFINED)
    if unknown is not None and len(name) == 6 and name.startswith("<0x"):
        return int(types.BYTE)
    return int(types.NORMAL)


def _scores(names: Mapping[int, str], pairs: list[tuple[str, ...]], size: int) -> list[float]:
    """llama.cpp joins the neighbours whose token has the highest score: here the one that is merged first."""
    first: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        first.setdefault("".join(pair), rank)
    return [-float(first.get(names.get(i, ""), len(pairs))) for i in range(size)]


def _special(tokenizer: Any) -> dict[str, int]:
    found = {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    return {name: int(token) for name, token in found.items() if token is not None}


def _adds(tokenizer: Any) -> tuple[bool, bool]:
    """Whether every text gets the first token of texts, and the last one."""
    bare, ids = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    begins = len(ids) > len(bare) and ids[0] == tokenizer.bos_token_id
    ends = len(ids) > len(bare) and ids[-1] == tokenizer.eos_token_id and ids[-len(bare) :] != bare
    return begins, ends


def _prefixed(spec: Mapping[str, Any]) -> bool:
    """Whether a text gets a space in front, by its normalizer or its pre-tokenizer."""
    prepends = any(part["type"] == "Prepend" for part in _parts(spec.get("normalizer")))
    spaces = [part for part in _parts(spec.get("pre_tokenizer")) if part["type"] == "Metaspace"]
    return prepends or any(part.get("prepend_scheme", "always") != "never" for part in spaces)


def _template(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template


def _notes(spec: Mapping[str, Any], byte_level: bool) -> list[str]:
    forms = sorted({part["type"] for part in _parts(spec.get("normalizer"))} & set(FORMS))
    if byte_level and forms:
        return [f"llama.cpp does not bring text into the form {', '.join(forms)}, as Transformers does"]
    return []
