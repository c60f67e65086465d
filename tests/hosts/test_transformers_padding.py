"""Rows with padding before or between their tokens: every class writes what plain decoding writes, or is
refused in one line."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from transformers import GPT2Config

from draftwise import UserError, transformers_generate
from draftwise.hosts.transformers import target
from draftwise.hosts.transformers.prompted import is_neutral
from draftwise.models.cache_names import cache_in, name_for
from draftwise.models.probe.small import VOCAB
from draftwise.models.runner.recurrent import in_modules, kinds, put
from tests.architectures.cases import Case, build, cases
from tests.architectures.judge import CRASH, DIFFERENT, EQUAL, PARTED, REFUSED, TIE, TIED, loses
from tests.effort import THOROUGH, some
from tests.tiny import VOCAB as FEW
from tests.tiny import lively

PART, PARTS = map(int, os.environ.get("DRAFTWISE_SWEEP", "0/24" if THOROUGH else "0/96").split("/"))
SHARD = [case for case in cases() if case.shard(PARTS) == PART]
CASES = {case.name: case for case in cases()}

NEW = 14
LEFT = torch.tensor([[0] * 5 + [1] * 13, [1] * 18, [0] * 2 + [1] * 16])
GAPS = torch.tensor([[1] * 6 + [0] * 8 + [1] * 4, [1] * 18, [0] * 2 + [1] * 9 + [0] * 3 + [1] * 4])
TURNS = torch.tensor([[1] * 11 + [0] * 9 + [1] * 3, [1] * 23, [1] * 17 + [0] * 3 + [1] * 3])
LONG = torch.tensor([[0] * 17 + [1] * 5, [1] * 22])  # beyond changes of rotary frequencies; blocks of padding
MASKS = {"left": LEFT, "left, long": LONG, "gaps": GAPS, "one row": GAPS[:1], "second turn": TURNS}


def drafted() -> Any:
    policy = "random?arms=drafters*lengths&lengths=0,2,5"
    return transformers_generate(drafters=["ngram", "suffix"], policy=policy, tokenizer=object())


def written(made: Any, kind: str, host: Any = None, **further: Any) -> Any:
    """What `generate` returns for made-up rows with padding of this kind."""
    if kinds(made.config.get_text_config(decoder=True)):
        put(in_modules(made), None)  # those of the text before
    mask, given = MASKS[kind], dict[str, Any]()
    ids = torch.randint(3, VOCAB - 1, mask.shape, generator=torch.Generator().manual_seed(7))
    asked = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    asked |= {"return_dict_in_generate": True}
    if kind == "second turn":  # of rows whose first answers were padded on the right
        n = ids.shape[1] - 3 - NEW
        first = made.generate(ids[:, :n], attention_mask=torch.ones_like(ids[:, :n]), **asked)
        ids = torch.cat([first.sequences, ids[:, n + NEW :]], dim=1)
        given = {name_for(made.prepare_inputs_for_generation): cache_in(first)}
    more = {"output_logits": True} if host is None else {"custom_generate": host}
    return made.generate(ids * mask, attention_mask=mask, **asked, **given, **more, **further)


def verdict(made: Any, kind: str) -> tuple[str, str]:
    """What came of it, in one word, and why; two words for one that plain decoding itself cannot read."""
    try:
        own = written(made, kind)
    except Exception as error:
        return "not decoded", str(error)
    try:
        out = written(made, kind, drafted())
    except UserError as error:
        return (REFUSED if "\n" not in str(error) else CRASH), str(error)
    except Exception as error:
        return CRASH, repr(error)
    said = EQUAL
    for row, (a, b) in enumerate(zip(own.sequences[:, -NEW:], out.sequences[:, -NEW:], strict=True)):
        if not torch.equal(a, b):
            at = int((a != b).nonzero()[0])
            logits = own.logits[at][row]
            if (logits[a[at]] - logits[b[at]]).abs() <= TIED * logits.abs().max():
                said = TIE if said == EQUAL else said
            elif loses(made, own.sequences.shape[1] - NEW + at) and torch.equal(b, whole(made, kind)[row]):
                said = PARTED
            else:
                return DIFFERENT, f"row {row}: token {at}"
    return said, ""


def whole(made: Any, kind: str) -> torch.Tensor:
    """The text without a cache, where the class loses what it read before: its new tokens by row."""
    found: torch.Tensor = written(made, kind, use_cache=False).sequences[:, -NEW:]
    return found


SLOTS = ["bart", "git", "roformer", "whisper"]  # count positions by slots
WINDOWS = ["mistral", "gemma3_text", "llama4_text/chunked", "gpt_neo", "qwen3/window", "deepseek_v4"]
OTHERS = ["llama/longrope", "llama/dynamic", "llama", "bloom"]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", some([*SLOTS, *WINDOWS, *OTHERS], 4))
def test_what_counts_padding_writes_its_own_text(name: str, kind: str) -> None:
    """Windows, chunks and groups of tokens count the padding between tokens, and some classes all of it.

    Rotary frequencies that depend on the length are those of the longest row.
    """
    assert verdict(build(CASES[name]), kind) == (EQUAL, "")


@pytest.mark.parametrize(
    ("name", "left"), [("mamba", EQUAL), ("recurrent_gemma", REFUSED), ("rwkv", REFUSED)]
)
def test_states_that_read_padding_are_refused(name: str, left: str) -> None:
    made = build(CASES[name])
    assert verdict(made, "left")[0] == left
    word, why = verdict(made, "gaps")
    assert word == REFUSED and why.endswith("without padding in attention_mask it may work")


@pytest.mark.parametrize("blocks", [(4, 2), (128, 16)])
def test_an_index_whose_blocks_hold_padding_is_refused(blocks: tuple[int, int]) -> None:
    """Where a block holds nothing else, a token sees all that the pass reads, a draft after it as well.

    Released models have blocks of 128 tokens: a small model of the class shows it.
    """
    sizes = dict(zip(("index_block_size", "index_topk_blocks"), blocks, strict=True))
    fields = CASES["minimax_m3_vl_text/sparse"].fields | sizes
    made = build(Case("minimax", "minimax_m3_vl_text", fields), lively=False)
    assert not is_neutral(made)
    word, why = verdict(made, "left, long")
    assert word == REFUSED and "reads several tokens after padding otherwise than one by one" in why
    assert why.endswith("without padding in attention_mask it may work")
    ids = torch.tensor([[*range(3, 25)]])
    asked = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    own = made.generate(ids, **asked)
    assert torch.equal(made.generate(ids, custom_generate=drafted(), **asked), own)


@pytest.mark.parametrize("name", ["phi3", "phi3/longrope"])
def test_a_cache_that_the_model_itself_drops_is_refused(name: str) -> None:
    word, why = verdict(build(CASES[name]), "second turn")
    assert word == REFUSED and "drops its cache after 32 tokens" in why


def test_padding_does_not_hide_what_a_draft_must_not_see() -> None:
    """This class has a window in its cache alone, and a trial saw nothing but padding in it."""
    word, why = verdict(build(CASES["moshi"]), "one row")
    assert word == REFUSED and "cannot read several tokens" in why


@pytest.mark.parametrize("case", SHARD, ids=lambda case: case.name)
def test_no_text_is_another_and_nothing_crashes(case: Case) -> None:
    """A fixed part of all classes, four times as many in a thorough run; `DRAFTWISE_SWEEP=0/1`: all."""
    try:
        made = build(case)
    except Exception as error:  # Transformers itself cannot make it
        pytest.skip(str(error))
    found = {kind: verdict(made, kind) for kind in MASKS}
    assert not [word for word, _ in found.values() if word in (DIFFERENT, CRASH)], found


def test_rows_that_are_moved_together_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_has_gap", lambda seen: False)
    assert verdict(build(CASES["mistral"]), "gaps")[0] == DIFFERENT
    monkeypatch.setattr(target, "is_neutral", lambda model: True)
    assert verdict(build(CASES["bart"]), "left")[0] == DIFFERENT


def gpt2() -> Any:
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 24}
    return lively(GPT2Config(vocab_size=FEW, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes))


@pytest.mark.parametrize(("length", "new"), [(20, 5), (23, 2), (24, 1)])
def test_the_last_token_needs_no_position(length: int, new: int) -> None:
    """Nothing reads it."""
    made, ids = gpt2(), torch.arange(length)[None] * 7 % 20 + 2
    asked = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    own = made.generate(ids, max_new_tokens=new, **asked)
    assert torch.equal(made.generate(ids, max_new_tokens=new, custom_generate=drafted(), **asked), own)
    with pytest.raises(UserError, match="window of 24 tokens: give a smaller max_new_tokens"):
        made.generate(ids, max_new_tokens=new + 1, custom_generate=drafted(), **asked)


def test_scores_of_finished_rows_end_with_the_positions() -> None:
    """Those of padding are computed ahead."""
    made, ids = gpt2(), torch.randint(2, 22, (2, 18), generator=torch.Generator().manual_seed(9))
    asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 4}
    free = made.generate(ids, **asked)[:, 18:]
    ends = [int(free[0, 0]), int(free[1, 3])]
    assert not {*free[1, :3].tolist()} & {*ends}
    asked |= {"max_new_tokens": 60, "output_scores": True, "return_dict_in_generate": True}
    asked |= {"eos_token_id": ends}
    own, out = (made.generate(ids, **asked, **more) for more in ({}, {"custom_generate": drafted()}))
    assert torch.equal(own.sequences, out.sequences) and own.sequences.shape[1] == 22
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(own.scores, out.scores, strict=True))


class Quantised(torch.nn.Module):
    """A head as quantisation leaves it: it unpacks its weight on demand."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.head = head.in_features, head.out_features, [head]

    def weight(self) -> torch.Tensor:
        return self.head[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head[0](x)
        return found


@pytest.mark.parametrize("kind", ["left", "gaps"])
def test_a_quantised_head(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "is_neutral", lambda model: False)
    made = build(CASES["llama"])
    made.lm_head = Quantised(made.lm_head)
    assert verdict(made, kind) == (EQUAL, "")
