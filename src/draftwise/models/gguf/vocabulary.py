"""A Transformers tokenizer as the metadata of a GGUF file: tokens, merges, special tokens, chat template; and
the pre-tokenizer of llama.cpp that cuts text as it does, found by trying each."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import UserError
from .library import EXTRA, library
from .model import GgufTokenizer

BYTES, SENTENCES = "gpt2", "llama"  # tokenizer.ggml.model: byte-level BPE, and BPE as SentencePiece has it
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "mask")


Tell = Callable[[str, int, int], None]
"""Shows how far a phase is: what it is, how much is done, of how much."""


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
    """Return the module `gguf`, llama.cpp's own writer of such files; a UserError if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        raise UserError(f"the package gguf is not installed ({error}): {EXTRA}") from error


def read_vocabulary(tokenizer: Any, size: int) -> Vocabulary:
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
    template = getattr(tokenizer, "chat_template", None)
    return Vocabulary(
        model=BYTES if byte_level else SENTENCES,
        tokens=_padded(names, size),
        kinds=[_kind(names.get(i), added.get(i), unknown, types) for i in range(size)],
        scores=None if byte_level else _scores(names, pairs, size),
        merges=[" ".join(pair) for pair in pairs] if byte_level else [],
        special={n: int(i) for n in SPECIAL if (i := getattr(tokenizer, f"{n}_token_id", None)) is not None},
        adds=_adds(tokenizer),
        prefixed=not byte_level and _prefixed(spec),
        template=template.get("default") if isinstance(template, dict) else template,
        notes=_notes(spec, byte_level),
    )


def write_tokenizer(writer: Any, vocabulary: Vocabulary, pre: str) -> None:
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


def _parts(spec: Any) -> Iterator[dict[str, Any]]:
    """A component of a tokenizer and, if it is a sequence, its parts."""
    if spec:
        yield spec
        for key in ("pretokenizers", "normalizers", "decoders", "processors"):
            for part in spec.get(key) or ():
                yield from _parts(part)


def _padded(names: Mapping[int, str], size: int) -> list[str]:
    """Every token's name; names of padding differ from all others, as llama.cpp demands."""
    used, padded = set(names.values()), dict(names)
    for i in set(range(size)) - names.keys():
        padded[i] = f"[PAD{i}]"
        while padded[i] in used:
            padded[i] += "_"
    return [padded[i] for i in range(size)]


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


def _notes(spec: Mapping[str, Any], byte_level: bool) -> list[str]:
    forms = sorted({part["type"] for part in _parts(spec.get("normalizer"))} & set(FORMS))
    if byte_level and forms:
        return [f"llama.cpp does not bring text into the form {', '.join(forms)}, as Transformers does"]
    return []


# One name for each of llama.cpp's pre-tokenizers of byte-level BPE; a version without one refuses its name.
PRES = (
    *("gpt-2", "qwen2", "llama-bpe", "smollm", "tekken", "default", "gpt-4o", "qwen35", "deepseek-llm"),
    *("deepseek-coder", "deepseek-v3", "falcon", "mpt", "starcoder", "refact", "command-r", "stablelm2"),
    *("olmo", "dbrx", "smaug-bpe", "poro-chat", "glm4", "viking", "jais", "jais-2", "codeshell", "bloom"),
    *("gpt3-finnish", "exaone", "exaone4", "exaone-moe", "chameleon", "minerva-7b", "megrez", "tiny_aya"),
    *("superbpe", "trillion", "granite-docling", "granite-embed-multi-97m", "bailingmoe", "seed-coder"),
    *("hunyuan", "hunyuan-dense", "hy_v4", "joyai-llm", "kimi-k2", "ufakzeka", "grok-2", "afmoe", "laguna"),
    *("minimax-m2", "solar-open", "mellum2", "minicpm5", "spark2_5", "modern-bert", "mellum"),
)
SENTENCE = "default"  # the name in files of SentencePiece's kind, which has no pre-tokenizer
ENOUGH = 20  # texts that differ until a pre-tokenizer is given up
SAMPLES = Path(__file__).with_name("samples.json")  # texts, and pieces of text to be joined at random


def find_pre_tokenizer(vocabulary: Vocabulary, tokenizer: Any, *, tell: Tell) -> tuple[str, int]:
    """Return the first pre-tokenizer with which llama.cpp gives a tokenizer's ids and texts, and the
    number of texts compared.

    Raises:
        UserError: llama.cpp is missing, or none agrees: the line has the nearest one and a text on which it
            differs.
    """
    library()  # an error below is then that of a pre-tokenizer
    texts = list(_make_texts(vocabulary, tokenizer))
    expected = [(text, tokenizer(text)["input_ids"]) for text in texts]
    names = PRES if vocabulary.model == BYTES else (SENTENCE,)
    nearest: tuple[int, str, str] | None = None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_vocabulary(path, vocabulary)
        for done, name in enumerate(names):
            tell("trying pre-tokenizers", done, len(names))
            try:
                converted = GgufTokenizer.from_file(path, pre=name)
            except UserError:
                continue  # this version of llama.cpp has no such pre-tokenizer
            agreed, text = _compare(converted, tokenizer, expected)
            if text is None:
                return name, len(texts)
            if nearest is None or agreed > nearest[0]:
                nearest = agreed, name, text
    if nearest is None:
        raise UserError("llama.cpp cannot read this vocabulary: update llama-cpp-python")
    _, name, text = nearest
    raise UserError(
        f"no pre-tokenizer of llama.cpp cuts text as this tokenizer does: the nearest, {name!r}, cuts "
        f"{text[:60]!r} otherwise"
    )


def _compare(
    converted: GgufTokenizer, original: Any, expected: Sequence[tuple[str, list[int]]]
) -> tuple[int, str | None]:
    """How many texts agree in ids and in text before `ENOUGH` do not, and the first of those, if any."""
    agreed, wrong = 0, list[str]()
    for text, ids in expected:
        if len(wrong) == ENOUGH:
            break
        same = converted.encode(text) == ids
        for skip in (False, True) if same else ():
            read = original.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            same = same and converted.decode(ids, skip_special_tokens=skip) == read
        agreed += same
        wrong += [] if same else [text]
    return agreed, wrong[0] if wrong else None


def _make_texts(vocabulary: Vocabulary, tokenizer: Any) -> Iterator[str]:
    """Texts of many kinds: samples, their pieces joined at random, tokens of the vocabulary, added tokens; in
    the Unicode normal form that the tokenizer applies and llama.cpp does not, if there is one."""
    backend = tokenizer.backend_tokenizer
    forms = {part["type"] for part in _parts(json.loads(backend.to_str()).get("normalizer"))}
    normalizes = forms & set(FORMS) and forms <= {*FORMS, "Sequence"}
    for text in _sample_texts(vocabulary, tokenizer):
        yield backend.normalizer.normalize_str(text) if normalizes else text


def _sample_texts(vocabulary: Vocabulary, tokenizer: Any) -> Iterator[str]:
    samples = json.loads(SAMPLES.read_text(encoding="utf-8"))
    yield from samples["texts"]
    draw = Random(0)
    for _ in range(400):
        yield "".join(draw.choices(samples["pieces"], k=draw.randrange(1, 12)))
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    for token in added[:50]:
        yield from (token, f"a{token}b", f" {token} c\n{token}{token}\n", f"x {token[:-1]}")
    plain = [i for i in range(len(vocabulary.tokens)) if vocabulary.kinds[i] == 1]
    for token in draw.sample(plain, min(len(plain), 5000)):
        text = tokenizer.decode([token])
        if "\N{REPLACEMENT CHARACTER}" not in text and unicodedata.is_normalized("NFC", text):
            yield text


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write a file with the vocabulary alone, whose pre-tokenizer is to be named when it is loaded."""
    writer = writer_module().GGUFWriter(path, "llama")
    write_tokenizer(writer, vocabulary, SENTENCE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
