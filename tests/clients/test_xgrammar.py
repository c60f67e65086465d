"""XGrammar's logits processor: a state for each row, which moves on with every call."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

xgrammar = pytest.importorskip("xgrammar")

TEXTS = ["Give me a list of numbers:", "JSON:", "Once upon a time, an array:"]
SCHEMA = '{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}'


@pytest.fixture(scope="module")
def compiled(tokenizer: Any, small: Any) -> Any:
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=small.config.vocab_size)
    return xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(SCHEMA)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
def test_a_grammar_in_a_batch(
    small: Any, tokenizer: Any, drafted: Any, compiled: Any, rows: int, sample: bool
) -> None:
    from xgrammar.contrib.hf import LogitsProcessor

    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    inputs = left(TEXTS[:rows], return_tensors="pt", padding=True)
    given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    texts = []
    for host in ({}, {"custom_generate": drafted}):
        torch.manual_seed(3)
        processor = LogitsProcessor(compiled)
        out = small.generate(
            **given, max_new_tokens=40, do_sample=sample, top_k=0, logits_processor=[processor], **host
        )
        texts.append(out)
        assert len(processor.matchers) == rows  # the user's own object was called
    assert torch.equal(*texts)
    new = tokenizer.batch_decode(texts[1][:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    assert any(2 <= len(json.loads(text)) <= 4 for text in new if text.rstrip().endswith("]"))
