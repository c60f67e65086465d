"""The acceptance of a drafter, measured by decoding, for the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..core.sampling import Sampling
from ..generation.decoder import Decoder

if TYPE_CHECKING:
    from .folder import Material
    from .texts import Tell

LENGTH = 5  # tokens per draft, as in MetaSD
LOOKUPS = ["ngram", "suffix"]
TIMED, TIMED_TOKENS = 8, 64  # prompts that speeds are measured on, and the longest texts there
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


def speeds(material: Material, drafter: Any, tell: Tell) -> dict[str, float]:
    """Tokens per second on some held-out prompts: plain, with lookups, and with lookups and this drafter.

    `auto` decides in the last two. The three take turns with each prompt, after one that is not counted.
    """
    names = {"plain": [], "lookups": LOOKUPS, "trained": [*LOOKUPS, drafter]}
    decoders = {
        name: Decoder.from_pretrained(material.target, tokenizer=material.tokenizer, drafters=team)
        for name, team in names.items()
    }
    tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    prompts = material.measuring[:TIMED]
    for number, ids in enumerate([prompts[0], *prompts]):
        tell("Measuring speed", number, len(prompts) + 1)
        for name in list(names)[number % 3 :] + list(names)[: number % 3]:
            sampling = Sampling(max_new_tokens=TIMED_TOKENS, eos=decoders[name].eos)
            began = perf_counter()
            written = sum(len(round.tokens) for round in decoders[name].loop.run([ids], sampling))
            if number:
                tokens[name], seconds[name] = tokens[name] + written, seconds[name] + perf_counter() - began
    return {name: tokens[name] / seconds[name] for name in names}


def verdict(speed: Mapping[str, float]) -> str:
    """Return in one line whether a trained drafter pays, from `speeds`."""
    over = speed["trained"] / speed["lookups"]
    what = "faster than" if over > 1.02 else "slower than" if over < 0.98 else "as fast as"
    return (
        f"{speed['trained']:.1f} tokens/s with it, {speed['lookups']:.1f} with lookups alone, "
        f"{speed['plain']:.1f} plain: {what} lookups alone ({over:.2f}); `draftwise bench` measures more"
    )
