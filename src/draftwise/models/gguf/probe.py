"""Finds the pre-tokenizer of llama.cpp that cuts text as a Transformers tokenizer does, by trying each."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import UserError
from .library import library
from .tokenizer import GgufTokenizer
from .vocabulary import BYTES, Vocabulary, normalizer, write, writer_module

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


@dataclass(frozen=True)
class Found:
    """A pre-tokenizer's name, and the number of texts on which llama.cpp agrees with it."""

    pre: str
    texts: int


def find(vocabulary: Vocabulary, tokenizer: Any, *, tell: Callable[[str, int, int], None]) -> Found:
    """The first pre-tokenizer with which llama.cpp gives a tokenizer's ids and texts.

    Raises:
        UserError: llama.cpp is missing, or none agrees: the line has the nearest one and a text on which it
            differs.
    """
    library()  # an error below is then that of a pre-tokenizer
    texts = list(corpus(vocabulary, tokenizer))
    expected = [(text, tokenizer(text)["input_ids"]) for text in texts]
    names = PRES if vocabulary.model == BYTES else (SENTENCE,)
    nearest: tuple[int, str, str] | None = None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_vocabulary(path, vocabulary)
        for done, name in enumerate(names):
            tell("trying pre-tokenizers", done, len(names))
            try:
                ours = GgufTokenizer.from_file(path, pre=name)
            except UserError:
                continue  # this version of llama.cpp has no such pre-tokenizer
            wrong = disagreement(ours, tokenizer, expected)
            if wrong is None:
                return Found(name, len(texts))
            agreed, text = wrong
            nearest = max(nearest or (agreed, name, text), (agreed, name, text), key=lambda n: n[0])
    if nearest is None:
        raise UserError("llama.cpp cannot read this vocabulary: update llama-cpp-python")
    _, name, text = nearest
    raise UserError(
        f"no pre-tokenizer of llama.cpp cuts text as this tokenizer does: the nearest, {name!r}, cuts "
        f"{text[:60]!r} otherwise"
    )


def disagreement(
    ours: GgufTokenizer, theirs: Any, expected: list[tuple[str, list[int]]]
) -> tuple[int, str] | None:
    """How many texts agreed in ids and in text before `ENOUGH` did not, and the first of those; None if all
    agree."""
    agreed, first, wrong = 0, None, 0
    for text, ids in expected:
        if wrong == ENOUGH:
            break
        same = ours.encode(text) == ids
        for skip in (False, True) if same else ():
            read = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            same = same and ours.decode(ids, skip_special_tokens=skip) == read
        if same:
            agreed += 1
            continue
        wrong += 1
        first = text if first is None else first
    return None if first is None else (agreed, first)


def corpus(vocabulary: Vocabulary, tokenizer: Any) -> Iterator[str]:
    """Texts of many kinds: samples, their pieces joined at random, tokens of the vocabulary, added tokens."""
    form = normalizer(tokenizer)
    for text in _texts(vocabulary, tokenizer):
        yield form.normalize_str(text) if form else text


def _texts(vocabulary: Vocabulary, tokenizer: Any) -> Iterator[str]:
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
    write(writer, vocabulary, SENTENCE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
