"""The study of a draft model with another tokenizer: its tokenizer, its first weights, and its table."""

from __future__ import annotations

from typing import Any

import torch

from draftwise.models.load import load_model
from studies.speed.other_tokenizer import moved, sentencepiece, table, text

ROW = {"prompt": "Translate: Ein Hund läuft.", "completion": "A dog is running. 数据 🙂"}


def test_the_other_tokenizer_and_the_weights_for_it(tokenizer: Any) -> None:
    texts = [text(ROW), *(f"the dog number {i} is running, and that is all" for i in range(300))]
    other = sentencepiece(texts, tokenizer)
    ids = other(text(ROW))["input_ids"]
    assert other.decode(ids) == text(ROW) and other.decode(ids, skip_special_tokens=True) != text(ROW)
    assert other.convert_ids_to_tokens(ids)[0] == "<|user|>" and ids[-1] == other.eos_token_id
    model: Any = load_model("zoo:general", dtype="float32")
    old = model.get_input_embeddings().weight
    new = moved(model, tokenizer, other).get_input_embeddings().weight
    assert new.shape == (len(other), old.shape[1])
    for name in ("<|end|>", "<|user|>"):
        mine, own = other.convert_tokens_to_ids(name), tokenizer.convert_tokens_to_ids(name)
        assert torch.equal(new[mine], old[own])
    (mine,), own = other(" dog")["input_ids"], tokenizer(" dog")["input_ids"]
    assert torch.allclose(new[mine], old[own].mean(0))


def test_the_table_has_means_over_rounds() -> None:
    counts = {
        "same": [[(3, 4), (1, 4)], [(2, 4)]],
        "text": [[(1, 2)], [(1, 2)]],
        "shared": [[(0, 4)], [(2, 4)]],
    }
    found = [
        {"way": way, "temperature": temperature, "domain": "sql", "rounds": rounds}
        for way, texts in counts.items()
        for temperature in (0.0, 1.0)
        for rounds in texts
    ]
    lines = table(found).splitlines()
    assert lines[2] == "| same | 2.00 ± 0.00 of 4.00 | 2.00 ± 0.00 of 4.00 |"
    assert lines[3].startswith("| text | 1.00 ± 0.00 of 2.00 |")
    assert lines[4].startswith("| shared | 1.00 ± 0.71 of 4.00 |")
