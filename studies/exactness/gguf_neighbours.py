"""Greedy texts of a GGUF model with other neighbours, drafts and numbers of threads: which differ?

    python -m studies.exactness.gguf_neighbours MODEL[?options]... [--texts 100] [--new-tokens 12]
        [--neighbours 8] [--threads 1,2]

Writes texts of 1 to `--new-tokens` tokens after prompts of Spec-Bench, of which one in ten is long enough to
be read in pieces: each alone, without drafts and with the first number of threads. With that text all other
ways are compared: every number of threads, alone and beside so many others that come and go, without drafts
and with n-gram drafts. Prints how many texts differ, by file, threads and way. The exit status is 1 if one
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from draftwise import registry
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.data import spec_bench
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import UserError
from draftwise.generation.prompts import encode
from draftwise.policies.catalogue import method
from draftwise.specs import parse_target
from studies.common.command import command, numbers, start

PAGE = "docs/how-to/gguf.md"
SHORT, LONG = 100, 1400  # characters of a prompt
LENGTH = 3  # tokens of a draft

Text = tuple[list[int], int]
"""The tokens of a prompt, and how many to write."""


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    options = parser.parse_args()
    return int(sum(different(model, options) for model in options.models) > 0)


def different(model: str, options: Any) -> int:
    """Count the texts that differ from the first way's, and print how many do by way."""
    texts: list[Text] = []
    truth: list[list[int]] = []
    count = 0
    for threads, batch, length in product(options.threads, (1, 1 + options.neighbours), (0, LENGTH)):
        target = opened(model, threads)
        texts = texts or drawn(target, options.texts, options.new_tokens)
        got = written(target, texts, batch, length)
        truth = truth or got
        wrong = sum(mine != own for mine, own in zip(got, truth, strict=True))
        beside, drafts = f"beside {batch - 1}" if batch > 1 else "alone", length or "no"
        way = f"threads={threads}, {beside}, {drafts} drafted tokens"
        print(f"{Path(model).name}: {way}: {wrong} of {len(texts)} differ", flush=True)
        count += wrong
    return count


def opened(model: str, threads: int) -> Any:
    """A target from a file, which may have options after a question mark."""
    spec = parse_target(model)
    if not spec.is_gguf:
        raise UserError(f"{model!r} is no GGUF file: give a path that ends in .gguf")
    asked = replace(spec, options={**spec.options, "threads": str(threads)})
    return registry.build("targets", asked, spec.path)


def drawn(target: Any, n: int, most: int) -> list[Text]:
    """Prompts, and the lengths of their texts."""
    draw, words = Random(0), target.model.tokenizer
    texts = []
    for i, prompt in enumerate(draw.sample(spec_bench(), n)):
        text = " ".join([prompt.text] * 4)[:LONG] if i % 10 == 9 else prompt.text[:SHORT]
        texts.append((encode(words, text, vocab_size=target.vocab_size), draw.randint(1, most)))
    return texts


def written(target: Any, texts: Sequence[Text], batch: int, length: int) -> list[list[int]]:
    """Their texts, so many at once; a long prompt is read in pieces between the steps of others, as a server
    does."""
    policy = method(f"static-{length}" if length else "none", ["ngram"])
    loop = Loop(target, {"ngram": NgramDrafter()}, policy.policy, policy.recorder)
    requests: list[Any] = []
    while len(requests) < len(texts) or loop.open:
        while len(requests) < len(texts) and len(loop.open) < batch:
            prompt, most = texts[len(requests)]
            others = list(loop.open.values())
            requests.append(loop.add(prompt, Sampling(max_new_tokens=most)))
            while batch > 1 and loop.read(requests[-1]):
                loop.step([other for other in others if other.id in loop.open])
        loop.step()
    return [request.tokens[request.prompt_length :] for request in requests]


if __name__ == "__main__":
    start(main)
