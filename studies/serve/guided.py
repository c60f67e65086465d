"""Accepted tokens under a grammar: with drafts that know it, and with drafts that do not.

Prompts of Spec-Bench are answered in JSON of a few fields by the bundled model, greedy and drawn, with drafts
of fixed length. Counted are rounds and accepted tokens, with the clock nowhere in it: drafts that know
nothing of the grammar, drafts that are masked, and those where also a token that must come next is drafted
for nothing. Greedy texts must be the same in all cases.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftwise import Decoder
from draftwise.core.roles import TokenMask
from draftwise.serve.bodies import Completion
from draftwise.serve.grammar import Constraint
from draftwise.serve.requests import RequestParser
from studies.common.command import command, start
from studies.common.tables import heading, row
from studies.common.texts import spread

PAGE = "docs/how-to/serve.md"
MODEL = "zoo:target"
DRAFTERS = ("zoo:general", "ngram")
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "category": {"enum": ["question", "translation", "summary", "mathematics"]},
        "certain": {"type": "boolean"},
        "words": {"type": "integer", "minimum": 0, "maximum": 500},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    },
    "required": ["title", "category", "certain", "words", "tags"],
    "additionalProperties": False,
}


class Silent:
    """A constraint that does not tell in advance what it allows."""

    def __init__(self, inner: Constraint) -> None:
        self.inner = inner

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.inner(input_ids, scores)


class Masked(Silent):
    """A constraint that tells what it allows, but not where that is one token only."""

    def __init__(self, inner: Constraint) -> None:
        super().__init__(inner)
        self.mask, self.allows = inner.mask, inner.allows

    def only(self, *given: Any) -> int:
        """Nothing."""
        return -1


KINDS: dict[str, Any] = {
    "that know no grammar": Silent,
    "masked": Masked,
    "masked, and tokens that must follow": lambda inner: inner,
}


def written(
    decoder: Decoder, asked: Sequence[str], kind: Any, *, most: int, temperature: float
) -> tuple[list[str], tuple[tuple[int, ...], ...]]:
    """Write a text for each prompt; accepted tokens a round, their share of those drafted, tokens a round.

    And the texts.
    """
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA}}
    body = Completion.model_validate({"model": MODEL, "prompt": "x", "response_format": form})
    parser = RequestParser(decoder)
    asked_form = parser.parse_form(body)
    assert asked_form is not None
    make = parser.grammars.compile(asked_form)
    assert isinstance(Masked(make()), TokenMask) and not isinstance(Silent(make()), TokenMask)
    outputs = decoder.generate_many(
        list(asked),
        chat=False,
        max_new_tokens=most,
        temperature=temperature,
        processors=[lambda: kind(make())],
        seed=7,
    )
    rounds = [round for output in outputs for round in output.rounds]
    accepted, drafted = (sum(getattr(round, what) for round in rounds) for what in ("accepted", "drafted"))
    texts = tuple(tuple(output.token_ids) for output in outputs)
    each = f"{accepted / len(rounds):.2f}", f"{sum(map(len, texts)) / len(rounds):.2f}"
    return [each[0], f"{100 * accepted / max(1, drafted):.0f} %", each[1]], texts


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=120)
    args = parser.parse_args()
    asked = [f"{text[:300]}\nDescribe this request as JSON.\n" for text in spread(args.prompts)]
    different = 0
    print(heading("drafter", "text", "drafts", "accepted a round", "of those drafted", "tokens a round"))
    for drafter in DRAFTERS:
        decoder = Decoder.from_pretrained(
            MODEL, drafters=[drafter], policy="static-4", dtype="float32", compile="off", seed=0
        )
        for text, temperature in (("greedy", 0.0), ("drawn", 1.0)):
            texts = set()
            for name, kind in KINDS.items():
                limits = {"most": args.max_new_tokens, "temperature": temperature}
                cells, own = written(decoder, asked, kind, **limits)
                print(row(f"`{drafter}`", text, name, *cells), flush=True)
                texts.add(own)
            different += temperature == 0.0 and len(texts) > 1
    print(json.dumps({"different": different}))
    return int(different > 0)


if __name__ == "__main__":
    start(main)
