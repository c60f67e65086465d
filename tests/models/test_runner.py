"""The passes of a model over several texts: what the model is given, and which logits are returned."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwise.models.runner import ModelRunner, PassInput, PassOutput
from draftwise.models.runner.masks import BANDED, Masks
from draftwise.models.runner.passes import Executor, PreparedPass
from draftwise.models.runner.positions import Rope
from draftwise.models.runner.runner import keeps_by_index
from draftwise.models.runner.traits import View
from tests.tiny import VOCAB, model


class Watched:
    """A model in place of the rows' own; it notes what each pass is given."""

    def __init__(self, made: Any, *, all_logits: bool = False) -> None:
        self.made, self.all_logits = made, all_logits
        self.given: list[dict[str, Any]] = []

    def __call__(self, **named: Any) -> Any:
        self.given.append(named)
        out = self.made(**named)
        if self.all_logits:  # as of a class without `logits_to_keep`
            return SimpleNamespace(logits=torch.nn.functional.pad(out.logits, (0, 0, 3, 0)))
        return out


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def opened(made: Any, n: int) -> ModelRunner:
    rows = ModelRunner(made)
    for key in range(n):
        rows.open(key)
    return rows


def alone(made: Any, text: Sequence[int]) -> Tensor:
    """The logits of a text that the model reads by itself, shape (tokens, vocabulary)."""
    logits: Tensor = made(torch.tensor([text])).logits[0]
    return logits


def test_logits_of_the_last_positions_are_returned() -> None:
    """The class may keep the last logits by itself, or return all of them."""
    made = model("llama")
    text = [3, 4, 5, 6, 7]
    for all_logits in (False, True):
        rows = opened(made, 1)
        got = rows.forward(PassInput(0, [text], 2, model=Watched(made, all_logits=all_logits))).logits
        torch.testing.assert_close(got[0], alone(made, text)[-2:])


def test_a_class_without_logits_to_keep_is_not_asked_for_it() -> None:
    made = model("llama")
    rows, watched = opened(made, 1), Watched(made)
    rows.keeps = False
    assert rows.forward(PassInput(0, [[3, 4, 5]], 1, model=watched)).logits.shape == (1, 1, VOCAB)
    assert "logits_to_keep" not in watched.given[0]


def test_a_bfloat16_model_on_a_cpu_is_given_the_indices_of_the_logits_to_keep() -> None:
    """A slice of bfloat16 states is multiplied many times slower than a copy of it."""
    made = model("llama").bfloat16()
    rows, watched = opened(made, 2), Watched(made)
    texts = [[3, 4, 5], [6, 7]]
    got = rows.forward(PassInput(0, texts, 2, model=watched)).logits
    assert watched.given[0]["logits_to_keep"].tolist() == [1, 2]
    whole = opened(made, 2).forward(PassInput(0, texts, 3)).logits
    torch.testing.assert_close(got, whole[:, -2:], rtol=0.02, atol=0.02)
    rows.forward(PassInput(0, [[8]], 1, model=watched))
    assert watched.given[1]["logits_to_keep"] == 1, "nothing is sliced where all positions are kept"
    plain, watched = opened(made.float(), 1), Watched(made)
    plain.forward(PassInput(0, [[3, 4, 5]], 1, model=watched))
    assert watched.given[0]["logits_to_keep"] == 1


def test_a_class_that_takes_only_a_number_of_logits_is_given_one() -> None:
    class Numbered:
        def forward(self, logits_to_keep: int, indices: int | Tensor) -> None: ...

    asked = inspect.signature(Numbered.forward).parameters
    assert not keeps_by_index(asked["logits_to_keep"], torch.device("cpu"), torch.bfloat16)
    assert not keeps_by_index(None, torch.device("cpu"), torch.bfloat16)
    assert not keeps_by_index(asked["indices"], torch.device("cuda"), torch.bfloat16), "a GPU slices fast"
    assert keeps_by_index(asked["indices"], torch.device("cpu"), torch.bfloat16)


def test_a_model_that_makes_its_own_masks_is_given_one_row_of_ones() -> None:
    made = model("llama")
    rows, watched = opened(made, 1), Watched(made)
    rows.guided = False
    rows.forward(PassInput(0, [[3, 4, 5]], 1, model=watched))
    rows.forward(PassInput(0, [[6]], 1, model=watched))
    assert watched.given[1]["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert "position_ids" not in watched.given[1]


def test_rows_of_one_length_share_positions_and_mask() -> None:
    made = model("llama")
    rows, watched = opened(made, 2), Watched(made)
    rows.forward(PassInput(0, [[3, 4, 5], [6, 7, 8]], 1, model=watched))
    shared = rows.cache.plan.even
    assert shared and watched.given[0]["position_ids"].tolist() == [[0, 1, 2]]
    assert watched.given[0]["attention_mask"].shape == (1, 1, 3, 3)
    rows.forward(PassInput(0, [[9], [9]], 1, model=watched))
    assert watched.given[1]["attention_mask"] is None, "a single token sees all slots"
    rows.forward(PassInput(0, [[3], [4, 5]], 1))
    rows.forward(PassInput(0, [[3], [4]], 1, model=watched))
    shared = rows.cache.plan.even
    assert not shared and watched.given[2]["position_ids"].tolist() == [[5], [6]]
    assert watched.given[2]["attention_mask"].shape == (2, 1, 1, 7)


def test_a_pass_that_names_no_room_keeps_the_room_named_before() -> None:
    rows = opened(model("llama"), 1)
    rows.forward(PassInput(0, [[3, 4]], 1, slots=100))
    rows.forward(PassInput(0, [[5]], 1))
    assert rows.cache.plan.most == 100


def test_positions_are_made_once_for_the_passes_to_come() -> None:
    rows = opened(model("llama"), 1)
    rows.forward(PassInput(0, [[3, 4, 5, 6, 7]], 1))
    before = rows.positions
    rows.forward(PassInput(0, [[8, 9, 10, 11]], 1))
    assert rows.positions is before


def test_padding_past_the_last_position_moves_no_other_token() -> None:
    """GPT-2 has 128 positions; a longer text beside pads this pass beyond them."""
    made = model("gpt2")
    text = [2 + i % 20 for i in range(128)]
    rows = opened(made, 2)
    rows.forward(PassInput(0, [text[:126]], 1))
    got = rows.forward(PassInput(0, [text[126:], [5, 6, 7, 8, 9]], 5)).logits
    torch.testing.assert_close(got[0, :2], alone(made, text)[126:])
    torch.testing.assert_close(got[1], alone(made, [5, 6, 7, 8, 9]))


@pytest.mark.parametrize(
    ("lengths", "passes"), [((4, 4, 4), 1), ((4, 9), 2), ((4, 4, 9), 3), ((4, 9, 16), 3)]
)
def test_texts_with_different_rotary_frequencies_are_read_apart(lengths: Sequence[int], passes: int) -> None:
    made, n = model("llama"), len(lengths)
    rows, watched = opened(made, n), Watched(made)
    rows.rope = Rope(borders=(6, 12))
    rows.forward(PassInput(0, [[3], [4], [5]][:n], 1, rope_lengths=lengths, model=watched))
    assert len(watched.given) == passes


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_pass_before_which_something_else_took_time_is_not_timed(is_busy: bool) -> None:
    rows = opened(model("llama"), 1)
    rows.poll = lambda: is_busy
    assert rows.forward(PassInput(0, [[3]], 1)).info.is_timed != is_busy


def test_texts_of_a_model_that_counts_positions_are_tried_together_once() -> None:
    class Counts(Watched):
        def __call__(self, **named: Any) -> Any:
            rows.cache.get_seq_length(0)
            return super().__call__(**named)

    made = model("llama")
    rows, watched = opened(made, 2), Counts(made)
    rows.forward(PassInput(0, [[3], [4, 5]], 1, model=watched))
    rows.forward(PassInput(0, [[6], [7]], 1, model=watched))
    got = rows.forward(PassInput(0, [[8], [9]], 1, model=watched)).logits
    assert len(watched.given) == 1 + 3 + 2
    torch.testing.assert_close(got[1], alone(made, [4, 5, 7, 9])[-1:])


def test_freed_rows_at_the_end_are_dropped() -> None:
    rows = opened(model("llama"), 3)
    rows.forward(PassInput(0, [[3, 4], [5, 6], [7, 8]], 1))
    cache = rows.cache
    rows.close(1)
    assert len(rows.request_ids) == 3 and rows.cached_lengths == [2, 0, 2]
    rows.close(2)
    assert rows.request_ids == [0] and rows.cached_lengths == [2] and rows.cache is cache
    rows.close(0)
    assert rows.request_ids == [] and rows.cache is cache, "small: the next text need not allocate it again"


def test_an_idle_cache_is_reused_if_it_is_small_and_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("llama")
    rows, text = opened(made, 1), [3, 4, 5, 6, 7]
    rows.forward(PassInput(0, [text * 4], 1))
    rows.close(0)
    held = rows.cache.rows[0].keys
    rows.open(1)
    torch.testing.assert_close(rows.forward(PassInput(0, [text], 5)).logits[0], alone(made, text))
    assert rows.cache.rows[0].keys is held
    for spoilt in (float("nan"), float("inf"), float("-inf")):
        held[0, 0, 9] = spoilt  # a text that overflowed: masked slots of the next would spread it
        rows.close(1)
        rows.open(1)
        torch.testing.assert_close(rows.forward(PassInput(0, [text], 5)).logits[0], alone(made, text))
        held = rows.cache.rows[0].keys
    monkeypatch.setattr("draftwise.models.runner.cache.KEPT", rows.cache.bytes - 1)
    rows.close(1)
    assert rows.cache.bytes == 0


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_text_that_overflowed_spoils_none_that_gets_its_row(is_moved: bool) -> None:
    """While others are open: a slot that a mask hides counts 0 times what it holds, and NaN stays NaN."""
    made = model("llama")
    rows, texts = opened(made, 3), [[3, 4], [5, 6, 7, 8], [9, 10]]
    rows.forward(PassInput(0, texts, 1))
    for held in rows.cache.rows[0].tensors:
        held[0, :, :4] = torch.nan  # what the pass has written
    rows.close(0)
    if is_moved:
        assert rows.move_to_front([2, 1]) == [0, 1]
        text, new = texts[2], [11]
    else:
        rows.open(3)
        text, new = [], [11, 12, 13]
    got = rows.forward(PassInput(0, [new, [11]], len(new))).logits[0, -1]
    torch.testing.assert_close(got, alone(made, [*text, *new])[-1])


def test_masks_that_are_kept_stay_small_after_a_long_text() -> None:
    masks = Masks(View(), 1 << 24, torch.float32, torch.device("cpu"))
    band = masks.band(3, 5, torch.arange(100_000))
    assert band[0, 0].tolist() == [[0.0] * (3 + at) + [band.min().item()] * (2 - at) for at in range(3)]
    assert band.untyped_storage().nbytes() <= 3 * BANDED[1] * 4


def test_rows_are_moved_to_the_front_with_their_texts() -> None:
    made = model("llama")
    rows = opened(made, 3)
    texts = [[3, 4], [5, 6, 7], [7, 8, 9, 10]]
    rows.forward(PassInput(0, texts, 1))
    rows.close(0)
    assert rows.move_to_front([2, 1]) == [0, 1] and rows.cached_lengths[:2] == [4, 3]
    got = rows.forward(PassInput(0, [[11], [12]], 1)).logits
    torch.testing.assert_close(got[0], alone(made, [*texts[2], 11])[-1:])
    torch.testing.assert_close(got[1], alone(made, [*texts[1], 12])[-1:])


class Chains(Executor):
    """Runs passes over one text, with logits of its own."""

    kind = "chains"

    def executor_for(self, runner: ModelRunner, given: PassInput) -> Executor:
        return super().executor_for(runner, given) if given.parents else self

    def run(self, runner: ModelRunner, prepared: PreparedPass) -> tuple[Tensor, dict[int, Tensor]]:
        logits, states = runner.eager.run(runner, prepared)
        return torch.full_like(logits, 7.0), states


class Counting(Executor):
    """Hands every pass down to another executor, and counts them by kind."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.passes = inner, Counter[str]()

    def try_run(self, runner: ModelRunner, given: PassInput) -> PassOutput | None:
        return self.inner.try_run(runner, given)

    def executor_for(self, runner: ModelRunner, given: PassInput) -> Executor:
        executor = self.inner.executor_for(runner, given)
        self.passes[executor.kind] += 1
        return executor


def test_an_executor_hands_passes_to_another_whose_kind_they_have() -> None:
    rows = opened(model("llama"), 1)
    rows.use(counting := Counting(Chains()))
    outputs = [
        rows.forward(PassInput(0, [[3, 4]], 1)),
        rows.forward(PassInput(0, [[5, 6]], 2, 0, {0: [-1, -1]})),
    ]
    assert [output.info.kind for output in outputs] == ["chains", "eager"]
    assert [bool((output.logits == 7).all()) for output in outputs] == [True, False]
    assert counting.passes == {"chains": 1, "eager": 1}
