"""Compiled passes on a tiny random model: the text of eager `generate`, all compiled in `prepare`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor

from draftwise import UserError
from draftwise.measure.bench.compiled import Compiled, Croppable, check_compiler
from draftwise.measure.bench.contender import Generation, Item
from draftwise.models.cache_names import CACHE
from tests.effort import thorough
from tests.tiny import VOCAB
from tests.tiny import model as tiny

from .fake import transformers as make

LAW = Generation(12)
EOS: frozenset[int] = frozenset()


def items() -> list[Item]:
    """A short text, one that repeats itself, and one in the next size of the cache."""
    texts = [[3, 5, 8], [4, 6, 9] * 5, Random(1).choices(range(VOCAB), k=50)]
    return [Item(i, i, "x", tuple(ids)) for i, ids in enumerate(texts)]


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dynamo keeps what other tests compiled, and describes all tensors to a log that only pytest reads; to
    try the compiler's options would take half the time."""
    torch.compiler.reset()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    with inductor.patch({"cpp.vec_isa_ok": True}):
        yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(model: Any) -> list[tuple[int, ...]]:
    peer = make("plain", model, eos=EOS)
    return [peer.decode([item], LAW)[0].tokens for item in items()]


@pytest.mark.parametrize("kind", ["compiled", pytest.param("compiled-lookup", marks=thorough)])
def test_compiled_passes_write_the_same_text(kind: str, model: Any, reference: Any) -> None:
    try:
        check_compiler("cpu")
    except UserError as error:
        pytest.skip(str(error))
    length = {"length": 4} if kind == "compiled-lookup" else {}
    peer = make(kind, model, eos=EOS, peer=Compiled, slots=64, **length)
    peer.prepare([[item] for item in items()], LAW)
    texts = [peer.decode([item], LAW)[0] for item in items()]
    assert [text.tokens for text in texts] == reference
    assert peer.late == 0, "everything was compiled before"
    if peer.drafts:
        assert sum(text.drafted for text in texts) > 0
    else:
        assert [text.rounds for text in texts] == [12, 12, 12]
    assert "forward" not in vars(model), "other modes get the model as it was"
    assert peer.settings["compiled"].startswith("TorchInductor")


def test_a_cache_that_can_be_cropped(model: Any) -> None:
    cache = Croppable(config=model.config, max_cache_len=32)
    ids = torch.tensor([[3, 5, 8, 9]])
    with torch.no_grad():
        model(ids, **{CACHE: cache})
        cache.crop(-2)
        assert int(cache.get_seq_length()) == 2
        again = model(ids[:, 2:], **{CACHE: cache}).logits[0, -1]
        assert torch.allclose(again, model(ids).logits[0, -1], atol=1e-5)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
    with pytest.raises(UserError, match=r"no C\+\+ compiler for torch\.compile"):
        check_compiler("cpu")
    check_compiler("cuda")
