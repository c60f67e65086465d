"""A GGUF drafter with another tokenizer than the target's drafts like the same model in Transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftwise import Decoder, UserError, export_gguf
from draftwise.core.drafts import Job
from draftwise.core.roles import GradeJob
from draftwise.drafters.neural.gguf import gguf
from draftwise.drafters.neural.translated import TranslatedDrafter, lm
from draftwise.drafters.translation import BROKEN, codec_of, shared_tokens
from tests.drafters.neural.test_translated import TEXTS, prompts, request
from tests.gguf import FOLDER
from tests.other_tokenizers import coarser

WORDS = "The naïve café 数据 🙂\n\n    return x"


@cache
def other() -> str:
    """`zoo:general` with fewer tokens as a file."""
    folder, path = Path(FOLDER.name) / "coarser", Path(FOLDER.name) / "coarser.gguf"
    model, tokenizer = coarser(3000)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    export_gguf(str(folder), path, type="f32")
    return str(path)


@cache
def target_file() -> str:
    path = Path(FOLDER.name) / "target-with-words.gguf"
    export_gguf("zoo:target", path, type="f32")
    return str(path)


def test_its_codec_is_that_of_the_same_tokenizer_in_transformers(tokenizer: Any) -> None:
    ours, theirs = gguf_model().codecs[1], codec_of(coarser(3000)[1])
    ids, spans = theirs.encode(WORDS)
    assert ours.encode(WORDS)[0] == ids and ours.decode(ids) == WORDS
    assert ours.end == theirs.end and ours.special.keys() == theirs.special.keys()
    whole = [i for i, (a, b) in enumerate(spans) if BROKEN not in theirs.decode([ids[i]])]
    assert [ours.encode(WORDS)[1][i] for i in whole] == [spans[i] for i in whole]
    target = codec_of(tokenizer)
    assert sorted(shared_tokens(target, ours, (4096, 3000))[0]) == sorted(
        shared_tokens(target, theirs, (4096, 3000))[0]
    )


@cache
def gguf_model() -> Any:
    from draftwise.models.load import load_tokenizer

    return gguf(other(), 4096, load_tokenizer("zoo:target"), cache="f32")


def test_it_drafts_and_grades_like_the_same_model_in_transformers(tokenizer: Any) -> None:
    one = gguf_model()
    model, theirs = coarser(3000)
    same = lm(model, 4096, (tokenizer, theirs), probe=False)
    assert isinstance(one, TranslatedDrafter)
    for temperature in (0.0, 1.0):
        texts = [request(i, ids, temperature=temperature) for i, ids in enumerate(prompts(tokenizer))]
        drafts = one.draft([Job(text, 4) for text in texts])
        for text in texts:
            text.rng.seed(text.id)
        assert [d.tokens for d in drafts] == [d.tokens for d in same.draft([Job(t, 4) for t in texts])]
        for text in texts:
            start = len(text.tokens)
            text.tokens += tokenizer("Here is a cat.", add_special_tokens=False)["input_ids"]
            job = GradeJob(text, start, [0.1] * (len(text.tokens) - start))
            (mine,), (own,) = one.grade([job]), same.grade([job])
            assert [g.accept for g in mine] == pytest.approx([g.accept for g in own], abs=2e-3)
            one.close(text)
            same.close(text)


def test_greedy_text_is_that_of_a_target_in_a_file() -> None:
    target = target_file()
    names = [other(), f"gguf:{other()}?vocabulary=shared"]
    decoder = Decoder.from_pretrained(target, drafters=names, policy="metasd-ucb")
    plain = Decoder.from_pretrained(target, policy="none")
    for text in TEXTS[:2]:
        own = plain.generate(text, max_new_tokens=24)
        assert decoder.generate(text, max_new_tokens=24).token_ids == own.token_ids
    assert decoder.last is not None and not any(decoder.loop.faults.values())


def test_the_same_tokenizer_takes_no_way(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="has the target's tokenizer, leave it out"):
        gguf(target_file(), 4096, tokenizer, vocabulary="text")
