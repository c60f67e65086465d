"""The acceptance of a drafter, measured by decoding, for the model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.sampling import Sampling
from ..generation.decoder import Decoder

LENGTH = 5  # tokens per draft, as in MetaSD
BATCH = 8  # batch size, which does not affect acceptance


def acceptance(
    target: Any,
    tokenizer: Any,
    drafter: Any,
    encoded: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    policy: str = f"static-{LENGTH}",
) -> dict[str, float]:
    """Greedy decoding of some prompts by one policy, five draft tokens per round unless it sets a length.

    `mean_accepted` counts accepted tokens per round without the target's own; `acceptance_rate` is accepted /
    drafted.
    """
    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, drafters=[drafter], policy=policy)
    sampling = Sampling(max_new_tokens=max_new_tokens, eos=decoder.eos)
    accepted = drafted = rounds = 0
    for round in decoder.loop.run(encoded, sampling, batch=BATCH):
        accepted, drafted, rounds = accepted + round.accepted, drafted + round.drafted, rounds + 1
    return {
        "mean_accepted": accepted / max(rounds, 1),
        "acceptance_rate": accepted / max(drafted, 1),
        "rounds": float(rounds),
    }
