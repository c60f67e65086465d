"""Tiny tokenizers of every kind that language models come with, built and trained in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "The quick brown fox, he said, doesn't jump over 数据 and the lazy dogs.",
    "def f(x):\n    return 'größer' + x  # 2 + 2 = 4\n\n",
    "数据结构 is not Zürich; naïve café 🙂 — and so on.",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|im_start|>", "<|im_end|>"]


def _wrapped(tokenizer: Tokenizer) -> Any:
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    kind: Any = PreTrainedTokenizerFast
    return kind(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def _byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return _wrapped(tokenizer)


def _byte_fallback(*parts: Any) -> Any:
    """SentencePiece as a BPE: `▁` for spaces, and bytes for what no piece covers."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=160, limit_alphabet=40))
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁▁", "▁▁▁▁", "\ufffd"]
    pieces += [piece for piece in trained.get_vocab() if piece not in pieces]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(list(parts))
    return _wrapped(tokenizer)


UNSPACED = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())


def _metaspace() -> Any:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"])
    tokenizer.train_from_iterator(TEXT, trainer)
    return _wrapped(tokenizer)


def _word_piece() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=150, special_tokens=["<unk>"]))
    return _wrapped(tokenizer)


def _suffixes() -> Any:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(TEXT, trainer)
    return _wrapped(tokenizer)


MAKERS: Mapping[str, Callable[[], Any]] = {
    "byte-level": _byte_level,
    "llama": lambda: _byte_fallback(*UNSPACED, decoders.Strip(" ", 1, 0)),
    "gemma": lambda: _byte_fallback(*UNSPACED),
    "fallback-metaspace": lambda: _byte_fallback(decoders.ByteFallback(), decoders.Metaspace()),
    "metaspace": _metaspace,
    "word-piece": _word_piece,
    "suffixes": _suffixes,
}


@cache
def tokenizer(name: str) -> Any:
    """The tokenizer of this kind, made once."""
    return MAKERS[name]()
