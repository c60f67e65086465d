"""What a model's layers see is what its own masks and its own cache say, not what its config says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

from draftwise.core.drafts import Draft
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import UserError
from draftwise.models.runner import ModelRunner, PassInput
from draftwise.models.runner.traits import View, ask
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with, written
from tests.models.test_positions import own_text
from tests.targets.test_hf import Oracle
from tests.targets.test_trees import grown, team
from tests.tiny import COMMON, VOCAB, lively, random_texts

WINDOW = 8
IGNORED = ("Llama", "StableLm", "Phi", "Granite", "Olmo2", "GPTNeoX")
SIZES: dict[str, Any] = {k: v for k, v in COMMON.items() if k != "head_dim"} | {"hidden_size": 32}
LENGTHS = (1, 6, 8, 9, 30)


def model(kind: str, **fields: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**SIZES | fields)
    return lively(config)


def prompts() -> list[list[int]]:
    return random_texts(LENGTHS)


@pytest.mark.parametrize("kind", IGNORED)
def test_a_window_that_only_the_config_knows(kind: str) -> None:
    """Its class shows a token everything; the cache of `generate` shows what it writes a window only."""
    made = model(kind, sliding_window=WINDOW)
    own = [own_text(made, p, 25) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    target = HFTarget(made, chunk=8)
    assert target.runner.masks.views == View(WINDOW, late=True)
    for batch in (1, 3):
        assert written(grown(target, team(truth)), prompts(), 25, batch) == own
        loop = loop_with(target, {"oracle": Oracle(truth, 0.3)}, "static-5")
        assert written(loop, prompts(), 25, batch) == own


def test_a_new_turn_and_a_shared_beginning_are_read_as_prompts() -> None:
    made = model("Llama", sliding_window=WINDOW)
    target = HFTarget(made, chunk=8)
    loop = loop_with(target, {"ngram": NgramDrafter()}, "static-3")
    request = loop.add(prompts()[1], Sampling(max_new_tokens=20), keep=True)
    while loop.open:
        loop.step()
    loop.extend(request, [4, 5], Sampling(max_new_tokens=20))
    whole = list(request.tokens)
    others = [loop.add(whole[:n], Sampling(max_new_tokens=20)) for n in (28, 20, 24)]
    while loop.open:
        loop.step()
    assert request.tokens[len(whole) :] == own_text(made, whole, 20)
    for other in others:
        n = other.prompt_length
        assert other.tokens[n:] == own_text(made, whole[:n], 20)


CHUNKED: dict[str, Any] = {
    "intermediate_size_mlp": 24,
    "num_local_experts": 2,
    "num_hidden_layers": 3,
    "no_rope_layers": [1, 1, 0],
    "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
    "attention_chunk_size": 6,
    "attn_temperature_tuning": False,
}


def test_chunks_are_masks() -> None:
    """A text in pieces, beside another of another length, has the logits of its plain forward."""
    made = model("Llama4Text", **CHUNKED)
    rows = ModelRunner(made)
    assert rows.masks.views == {"chunked_attention": View(chunk=6), "full_attention": View()}
    rng = Random(0)
    a, b = ([rng.randrange(VOCAB) for _ in range(n)] for n in (21, 13))
    rows.open(0)
    rows.open(1)
    with torch.inference_mode():
        rows.forward(PassInput(0, [a[:9]], 1))
        got = [rows.forward(PassInput(0, [a[9 + 2 * i : 11 + 2 * i], [b[i]]], 2)).logits for i in range(6)]
        whole = [made(torch.tensor([text])).logits[0] for text in (a, b)]
    torch.testing.assert_close(torch.cat([x[0] for x in got]), whole[0][9:21])
    torch.testing.assert_close(torch.stack([x[1, 0] for x in got]), whole[1][:6])


def test_layers_that_count_by_the_caches_length_read_texts_apart() -> None:
    """Llama 4 scales queries by their position, which it takes from the cache: rows have each their own."""
    scales = {"attn_temperature_tuning": True, "floor_scale": 3, "attn_scale": 0.5}
    made = model("Llama4Text", **CHUNKED | scales)
    own = [own_text(made, p, 25) for p in prompts()]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    target = HFTarget(made, chunk=8, probe=False)
    loop = loop_with(target, {"oracle": Oracle(truth, 0.3)}, "static-5")
    assert written(loop, prompts(), 25, 3) == own and not target.runner.together
    request = Request(99, [3, 4, 5], 3, Sampling(), Random(0), Random(0))
    target.open(request)
    with pytest.raises(UserError, match="drafts chains"):
        target.verify([(request, Draft((5, 6), (-1, -1)))])


def test_windows_of_some_layers_are_found_by_their_names() -> None:
    kinds = ["sliding_attention", "full_attention"]
    made = model("Qwen3", use_sliding_window=True, sliding_window=WINDOW, layer_types=kinds)
    assert ask(made).views == {"sliding_attention": View(WINDOW), "full_attention": View()}
    assert ask(model("Qwen3", use_sliding_window=False, sliding_window=WINDOW)).views == View()
    assert ask(model("Mistral", sliding_window=WINDOW)).views == View(WINDOW)


def test_a_token_that_sees_later_ones_is_refused() -> None:
    with pytest.raises(UserError, match=r"Gemma3.*bidirectional"):
        HFTarget(model("Gemma3Text", sliding_window=WINDOW, use_bidirectional_attention=True))


def test_asking_leaves_no_trace() -> None:
    before = dict(MASKS._local_mapping)
    made = model("Mistral", sliding_window=WINDOW)
    ask(made)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in made.modules()]
    assert not any(hooks) and before == MASKS._local_mapping
