"""The models of the sweep: every causal LM type of Transformers and variants that matter, small, random."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftwise.models.probe.small import VOCAB, small, spread
from draftwise.models.runner.recurrent import in_modules, kinds, put

from .hints import HINTS, VARIANTS


@dataclass(frozen=True)
class Case:
    """One model of the sweep; `fields` are those of its configuration beside the hints for its type."""

    name: str
    type: str
    fields: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None

    def shard(self, n: int) -> int:
        """Which of `n` shards decodes it, the same on every machine."""
        return zlib.crc32(self.name.encode()) % n


def cases() -> list[Case]:
    """Every type, then the variants: `type/what is different`."""
    types = [Case(name, name) for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    variants = []
    for name, fields in VARIANTS.items():
        own = dict(fields)
        variants.append(Case(name, name.split("/")[0], own, own.pop("attn_implementation", None)))
    return types + variants


def build(case: Case, *, lively: bool = True) -> Any:
    """The case's model with random weights, in float32, which never ends a text by itself.

    Random models often write one token for ever, whatever they have read, and then no mistake would show.
    Weights are drawn again, larger and with smaller embeddings, until the text moves and depends on its
    prompt; the liveliest are kept. Not `lively`: they are drawn once.
    """
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[case.type])
    config = CONFIG_MAPPING[case.type]
    if kind.config_class is not config and any(
        isinstance(part, kind.config_class) for part in vars(config()).values()
    ):
        config = kind.config_class  # the text part of a model that reads pictures or sound as well
    fields = HINTS.get(case.type, {}) | case.fields
    torch.manual_seed(0)  # `spread` leaves biases as the class draws them
    made = kind._from_config(small(config(), **fields), attn_implementation=case.attention).float().eval()
    made.generation_config = transformers.GenerationConfig()  # type: ignore[no-untyped-call]
    if not lively:
        spread(made, 0, 3.0, 0.1)
        return made
    best, chosen = -1, (0, *SCALES[0])
    for seed, (scale, embeddings) in enumerate(SCALES):
        spread(made, seed, scale, embeddings)
        life = liveliness(made)
        if life > best:
            best, chosen = life, (seed, scale, embeddings)
        if life >= LIVELY:
            return made
    spread(made, *chosen)
    return made


SCALES = ((2.0, 1.0), (2.0, 0.25), (4.0, 0.25), (3.0, 1.0), (3.0, 0.1), (6.0, 0.1), (1.5, 0.5), (8.0, 1.0))
LIVELY = 16


def liveliness(made: Any) -> int:
    """Different tokens of a greedy text, at most ten, and places that change with its prompt, at most ten."""
    prompt = torch.randint(3, VOCAB - 1, (1, 14), generator=torch.Generator().manual_seed(1))
    other = prompt.clone()
    other[0, 1] -= 1
    texts: list[list[int]] = [own_text(made, p[0].tolist(), 20) for p in (prompt, other)]
    moved: int = sum(a != b for a, b in zip(*texts, strict=True))
    return min(len(set(texts[0])), 10) + min(moved, 10)


def own_text(made: Any, prompt: list[int], n: int, **more: Any) -> list[int]:
    """What Transformers' own greedy decoding writes; `more` are further arguments of `generate`.

    A class that keeps its states in its modules may begin a text with those of the text before it.
    """
    if kinds(made.config.get_text_config(decoder=True)):
        put(in_modules(made), None)
    ids = torch.tensor([prompt])
    more |= {"max_new_tokens": n, "do_sample": False, "eos_token_id": None}
    out = made.generate(ids, attention_mask=torch.ones_like(ids), **more)
    return list(out[0, len(prompt) :].tolist())
