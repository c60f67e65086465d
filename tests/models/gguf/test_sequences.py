"""On a CPU, a GGUF target's logits depend on nothing but a text's tokens, to the last bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwise.errors import UserError
from draftwise.models.gguf.export import quantize
from draftwise.models.gguf.model import GgufModel
from draftwise.models.gguf.repacked_child import VOCAB, write
from draftwise.models.gguf.sequences import Sequences
from draftwise.models.gguf.vocabulary import writer_module
from draftwise.targets.gguf import GgufTarget, gguf
from tests.gguf import FOLDER

PROMPT, REST = [(7 * i * i + 3) % VOCAB for i in range(290)], [5, 9, 11, 2, 40, 33, 8, 21]


@cache
def model(type: str) -> GgufModel:
    """A random model of one layer; its prompt is long enough for all ways in which llama.cpp divides work."""
    path = Path(FOLDER.name) / f"layer-{type}.gguf"
    if type == "Q4_K":
        write(path, "F32")
        quantize(path, "q4_k", tell=lambda *_: None)
    else:
        write(path, type)
    return gguf(str(path)).model


def logits(type: str, cache: str, *, threads: int, piece: int, width: int, beside: bool) -> Tensor:
    """Those after each token of the rest, read so many tokens at once, alone or beside texts that come and
    go."""
    rows = GgufTarget(model(type), context=1024, threads=threads, cache=cache).rows
    if beside:
        rows.open(7)
        rows.feed([(7, PROMPT[:33], 1)])
    rows.open(0)
    rows.reserve({0: 400})
    for at in range(0, len(PROMPT), piece):
        rows.feed([(0, PROMPT[rows.cached_lengths[0] : at + piece], 0)])
        if beside and at == piece:
            rows.close(7)  # its cells are free, and lie before the rest
            for key in (8, 9):
                rows.open(key)
    found = []
    for at in range(0, len(REST), width):
        new = [*PROMPT, *REST[: at + width], 1, 2][rows.cached_lengths[0] :]
        neighbours = [(9, [4, 4, 4], 2), (8, [at], 1)] if beside else []
        got = rows.feed([*neighbours[:1], (0, new, width + 2), *neighbours[1:]])
        found.append(got[2 : 2 + width] if beside else got[:-2])
        rows.rewind(0, len(PROMPT) + at + width)
    return torch.cat(found)


CASES = [(type, "auto") for type in ("F32", "F16", "Q8_0", "Q5_0", "Q4_0", "Q4_1", "Q4_K")]


@pytest.mark.parametrize(("type", "cache"), [*CASES, ("F32", "f16"), ("Q4_1", "f16")])
def test_logits_depend_on_nothing_but_the_text(type: str, cache: str) -> None:
    own = logits(type, cache, threads=1, piece=290, width=1, beside=False)
    assert own.shape == (len(REST), VOCAB)
    for threads, piece, width, beside in ((1, 50, 4, True), (2, 120, 1, True)):
        way = {"threads": threads, "piece": piece, "width": width, "beside": beside}
        assert torch.equal(logits(type, cache, **way), own), way  # type: ignore[arg-type]


def test_a_shared_beginning_is_that_of_the_other_text() -> None:
    rows = GgufTarget(model("F16"), context=1024, threads=1).rows
    for key in (0, 1):
        rows.open(key)
    rows.feed([(0, PROMPT[:100], 0)])
    assert rows.share(1, 0, 60) and rows.cached_lengths == {0: 100, 1: 60}
    rows.close(0)
    got = rows.feed([(1, REST, len(REST))])
    rows.open(2)
    assert torch.equal(got, rows.feed([(2, [*PROMPT[:60], *REST], len(REST))]))


@pytest.mark.parametrize(
    ("type", "cache"), [("F32", "auto"), ("F16", "auto"), ("Q8_0", "auto"), ("Q8_0", "f16")]
)
def test_passes_are_paired_where_one_row_is_summed_up_in_another_order(type: str, cache: str) -> None:
    rows = GgufTarget(model(type), context=1024, threads=1, cache=cache).rows
    paired, rows.paired = rows.paired, False
    rows.open(0)
    together = rows.feed([(0, [*PROMPT, *REST], len(REST))])
    rows.rewind(0, len(PROMPT))
    alone = torch.cat([rows.feed([(0, [token], 1)]) for token in REST])
    assert paired == (not torch.equal(together, alone))


def bert(path: Path) -> str:
    """A random model of embeddings: each token sees the whole text."""
    writer, width = writer_module().GGUFWriter(str(path), "bert"), 32
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_type_count(2)
    writer.add_causal_attention(False)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    square, normed = (width, width), ("attn_output_norm", "layer_output_norm")
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, width),
        "token_types.weight": (2, width),
        "position_embd.weight": (64, width),
        "token_embd_norm.weight": (width,),
        "token_embd_norm.bias": (width,),
        "blk.0.ffn_up.weight": (2 * width, width),
        "blk.0.ffn_up.bias": (2 * width,),
        "blk.0.ffn_down.weight": (width, 2 * width),
        "blk.0.ffn_down.bias": (width,),
    }
    shapes |= {f"blk.0.attn_{part}.weight": square for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.attn_{part}.bias": (width,) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.{name}.{kind}": (width,) for name in normed for kind in ("weight", "bias")}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    return str(path)


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    embeds = GgufModel(bert(tmp_path / "bert.gguf"))
    with pytest.raises(UserError, match=r"bert.gguf reads whole texts only.*name a causal language model"):
        Sequences(embeds)


def test_without_memory_even_for_the_old_size_texts_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GgufTarget(model("F32"), context=4096, threads=1).rows
    rows.open(0)
    expected = rows.feed([(0, PROMPT[:20], 1)])
    with monkeypatch.context() as patch:

        def fail(cells: int, sequences: int) -> None:
            raise UserError("llama.cpp has no memory")

        patch.setattr(rows, "_new_context", fail)
        for _ in range(2):
            with pytest.raises(UserError, match="no memory"):
                rows.reserve({0: 4096})
    rows.open(1)
    rows.close(1)
    assert rows.cached_lengths == {0: 0}
    assert torch.equal(rows.feed([(0, PROMPT[:20], 1)]), expected)
