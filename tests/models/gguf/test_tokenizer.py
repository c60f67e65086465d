"""The tokenizer of a GGUF file gives the ids, the texts and the prompts of the Transformers tokenizer it came
from."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from draftwise.data import spec_bench
from draftwise.drafters.lookup.datastore import tokenizer_fingerprint
from draftwise.errors import UserError
from draftwise.generation.prompts import encode, render_messages
from draftwise.generation.text import decode
from draftwise.models.load import check_vocabulary, load_tokenizer
from tests.effort import some
from tests.tiny_tokenizers import SPECIAL, TEXT
from tests.tiny_tokenizers import tokenizer as tiny

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("gguf", reason="the package gguf is not installed")

from draftwise.models.gguf.model import GgufTokenizer
from draftwise.models.gguf.vocabulary import find_pre_tokenizer, read_vocabulary, write_vocabulary

FOLDER = TemporaryDirectory(prefix="draftwise-vocabularies-")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}\n"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def sentences() -> Any:
    """A BPE as SentencePiece has it, with byte fallback and merges, which adds `<s>` to a text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    trained.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=160, limit_alphabet=40))
    pieces = [*SPECIAL[:3], *(f"<0x{byte:02X}>" for byte in range(256))]
    learnt = trained.get_vocab()
    pieces += sorted((piece for piece in learnt if piece not in pieces), key=learnt.__getitem__)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    made = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens(SPECIAL[:3])
    kind: Any = PreTrainedTokenizerFast
    wrapped = kind(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    begin = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    wrapped.backend_tokenizer.post_processor = begin
    wrapped.chat_template = TEMPLATE
    return wrapped


def bytes_of() -> Any:
    """A byte-level BPE with special tokens after its vocabulary and a template that uses them."""
    made = tiny("byte-level")
    made.chat_template = TEMPLATE
    return made


MAKERS: dict[str, Callable[[], Any]] = {
    "bundled": lambda: load_tokenizer("zoo:target"),
    "byte-level": bytes_of,
    "sentences": sentences,
}


@cache
def pair(name: str) -> tuple[GgufTokenizer, Any]:
    """llama.cpp's tokenizer of a file, and Transformers'."""
    theirs = MAKERS[name]()
    said = read_vocabulary(theirs, max(theirs.get_vocab().values()) + 3)
    path = Path(FOLDER.name) / f"{name}.gguf"
    write_vocabulary(path, said)
    pre, _ = find_pre_tokenizer(said, theirs, tell=lambda what, done, total: None)
    return GgufTokenizer.from_file(path, pre=pre), theirs


everywhere = pytest.mark.parametrize("name", MAKERS)
TEXTS = st.text(alphabet=st.characters(exclude_categories=("Cs", "Cn")), max_size=20)
WORDS = st.lists(
    st.sampled_from(
        [*SPECIAL, "<|end|>", "<|user|>", " ", "  ", "\n", "\t", "don't", "'S", "12", "é", "🙂", "漢"]
    )
    | TEXTS,
    max_size=8,
).map("".join)


@everywhere
def test_questions_have_the_same_ids_and_text(name: str) -> None:
    ours, theirs = pair(name)
    for question in some(spec_bench(), 4):  # of every category
        ids = theirs(question.text)["input_ids"]
        assert ours(question.text)["input_ids"] == ours.encode(question.text) == ids
        bare = theirs(question.text, add_special_tokens=False)["input_ids"]
        assert ours.encode(question.text, add_special_tokens=False) == bare
        for special in (False, True):
            assert decode(ours, ids, special=special) == decode(theirs, ids, special=special)


@everywhere
@settings(max_examples=60, deadline=None)
@given(text=WORDS)
def test_any_text_has_the_same_ids(name: str, text: str) -> None:
    ours, theirs = pair(name)
    assert ours.encode(text) == theirs(text)["input_ids"]


@everywhere
@settings(max_examples=60, deadline=None)
@given(draws=st.lists(st.integers(0, 10_000), max_size=20), special=st.booleans())
def test_any_tokens_have_the_same_text(name: str, draws: list[int], special: bool) -> None:
    ours, theirs = pair(name)
    ids = [draw % len(theirs) for draw in draws]
    assert decode(ours, ids, special=special) == decode(theirs, ids, special=special)


CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": " Hello, wörld 🙂\n"}],
    [{"role": "system", "content": "Be <|end|> brief."}, {"role": "user", "content": "<s>hi</s>"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
]


@everywhere
@pytest.mark.parametrize("chat", CHATS)
def test_chats_become_the_same_prompt(name: str, chat: list[dict[str, str]]) -> None:
    ours, theirs = pair(name)
    assert render_messages(ours, chat) == render_messages(theirs, chat)
    assert encode(ours, chat, vocab_size=ours.size) == encode(theirs, chat, vocab_size=ours.size)
    assert encode(ours, "Hi", vocab_size=ours.size, chat=False) == theirs("Hi")["input_ids"]
    with_tools: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "größe"}}],
        "tokenize": False,
    }
    assert ours.apply_chat_template(chat, **with_tools) == theirs.apply_chat_template(chat, **with_tools)


def test_a_chat_that_the_template_refuses_is_one_line() -> None:
    ours, _ = pair("byte-level")
    with pytest.raises(UserError, match="refuses these messages: no tools here"):
        encode(ours, [{"role": "tool", "content": "x"}], vocab_size=ours.size)


@everywhere
def test_the_vocabulary_is_the_same(name: str) -> None:
    ours, theirs = pair(name)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)
    assert ours.size == len(theirs) + 2, "padding of the model's vocabulary"
    assert tokenizer_fingerprint(ours.get_vocab()) == tokenizer_fingerprint(theirs.get_vocab())
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert {i for i in ours.all_special_ids if i < len(theirs)} == set(theirs.all_special_ids) | {
        i for i, token in theirs.added_tokens_decoder.items() if token.special
    }
    for token, i in theirs.get_vocab().items():
        assert ours.convert_ids_to_tokens(i) == token
    check_vocabulary("file.gguf", ours, "model", theirs)


def test_a_text_ends_at_every_token_that_ends_one() -> None:
    assert pair("bundled")[0].ends == {2}
    ours, theirs = pair("byte-level")
    assert ours.eos_token_id == theirs.eos_token_id
    assert {ours.tokens[i] for i in ours.ends} == {"</s>", "<|im_end|>"}


def test_tokens_outside_the_vocabulary_are_one_line() -> None:
    ours, _ = pair("bundled")
    for token in (-1, ours.size):
        with pytest.raises(UserError, match=f"token id {token} is outside the vocabulary of {ours.size}"):
            ours.decode([5, token])


@pytest.mark.parametrize("name", ["metaspace", "word-piece", "suffixes"])
def test_tokenizers_of_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"a tokenizer of type \w+ \(.*\) is not converted: only BPE is"):
        read_vocabulary(tiny(name), len(tiny(name)))


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_tokenizer_that_llamacpp_reads_otherwise_is_refused(name: str) -> None:
    theirs = tiny(name)  # it has no merges, where llama.cpp joins whatever is in the vocabulary
    with pytest.raises(UserError, match=r"cuts text as this tokenizer does: the nearest, 'default', cuts"):
        find_pre_tokenizer(read_vocabulary(theirs, len(theirs)), theirs, tell=lambda what, done, total: None)


def test_more_tokens_than_embeddings_are_refused() -> None:
    theirs = tiny("byte-level")
    with pytest.raises(UserError, match="the tokenizer has ids up to"):
        read_vocabulary(theirs, len(theirs) - 1)
