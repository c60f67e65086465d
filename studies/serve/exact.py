"""Greedy texts of a busy server against those that each client would get alone, without speculation.

Many clients at once send prompts of all kinds, for texts of different lengths, with stop strings, several
samples, grammars, streams and drafters of their own choice; one in ten hangs up. Every text is compared with
plain decoding of its prompt alone in this process. Printed are the numbers of texts that are the same and
that differ, and by how many bytes the memory of the process changed over the second half of the requests.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import httpx

from draftwise import Decoder
from draftwise.data import spec_bench
from draftwise.models.runner.prefix_cache import keep_prefixes
from draftwise.serve.bodies import Completion
from draftwise.serve.requests import RequestParser
from draftwise.testing.drafter import SimDrafter
from studies.common.command import command, progress, start
from studies.serve.local import following, resident, serving

PAGE = "docs/how-to/serve.md"
MODEL, PATH = "zoo:target", "/v1/completions"
KEPT = 32  # MiB of what was read of earlier texts: less than all of them have
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
STOPS = (None, None, None, ".", ["the", "\n"], [" a", "e"])
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob", "Anna"]},
        "age": {"type": "integer"},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
FORMS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-f]{3,12}(, [0-9]+)*"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA}}},
    {"grammar": 'root ::= ("yes" | "no" | "yes, no") [.!]'},
)
SPECULATION = (None, None, None, None, False, {"drafters": ["ngram", "bad"]}, {"max_length": 2})


@dataclass(frozen=True)
class Case:
    """One request, and whether its client hangs up."""

    body: dict[str, Any]
    leaves: bool


def cases(n: int, seed: int, longest: int) -> list[Case]:
    """`n` requests, drawn."""
    draw, prompts = Random(seed), [prompt.text[:400] for prompt in spec_bench()]
    requests = []
    for _ in range(n):
        prompt = draw.choice(prompts[:: max(1, len(prompts) // max(8, n // 6))])
        most = draw.choice([length for length in LENGTHS if length <= longest])
        body = {"model": MODEL, "prompt": prompt, "max_tokens": most, "temperature": 0.0}
        body |= {"n": draw.choice((1, 1, 1, 2, 3)), "stream": draw.random() < 0.5}
        body |= {"speculative": draw.choice(SPECULATION), "stop": draw.choice(STOPS)}
        if draw.random() < 0.15:
            body |= draw.choice(FORMS) | {"stop": None}
        requests.append(Case({k: v for k, v in body.items() if v is not None}, draw.random() < 0.1))
    return requests


class Alone:
    """Return the texts that one client alone gets with speculation off."""

    def __init__(self, longest: int) -> None:
        self.decoder = Decoder.from_pretrained(MODEL, policy="none", dtype="float32", compile="off")
        self.parser, self.longest = RequestParser(self.decoder), longest
        self._tokens = cache(self._written)

    def text(self, body: dict[str, Any]) -> tuple[str, str]:
        """The text and the reason of its end."""
        form = {key: body[key] for key in ("regex", "grammar", "response_format") if key in body}
        tokens, reason = self._tokens(body["prompt"], json.dumps(form))
        most = body["max_tokens"]
        cut, reason = tokens[:most], reason if len(tokens) <= most and reason == "eos" else "length"
        stops = body.get("stop") or ()
        for n in range(len(cut) + 1):
            text = self.decoder.tokenizer.decode(cut[:n], skip_special_tokens=True)
            places = [text.find(s) for s in ([stops] if isinstance(stops, str) else stops) if s in text]
            if places:
                return text[: min(places)], "stop"
        return text, "stop" if reason == "eos" else "length"

    def _written(self, prompt: str, form: str) -> tuple[list[int], str]:
        body = Completion(model=MODEL, prompt=prompt, **json.loads(form))
        asked_form = self.parser.parse_form(body)
        grammar = None if asked_form is None else self.parser.grammars.compile(asked_form)
        more: dict[str, Any] = {"processors": [grammar]} if grammar else {}
        out = self.decoder.generate(prompt, chat=False, max_new_tokens=self.longest, temperature=0.0, **more)
        return out.token_ids, out.finish_reason


async def asked(client: httpx.AsyncClient, case: Case, draw: Random) -> list[tuple[str, str]] | None:
    """The texts that a client is given; None if it left."""
    try:
        limit = draw.random() * 0.3 if case.leaves else None
        return await asyncio.wait_for(_texts(client, case.body), limit)
    except asyncio.TimeoutError:
        return None


async def _texts(client: httpx.AsyncClient, body: dict[str, Any]) -> list[tuple[str, str]]:
    if not body["stream"]:
        answer = (await client.post(PATH, json=body)).raise_for_status().json()
        return [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]]
    texts, reasons = [""] * body["n"], [""] * body["n"]
    async with client.stream("POST", PATH, json=body) as answer:
        answer.raise_for_status()
        async for row in answer.aiter_lines():
            if row.startswith("data: {"):
                for choice in json.loads(row[6:])["choices"]:
                    texts[choice["index"]] += choice["text"]
                    reasons[choice["index"]] = choice["finish_reason"] or ""
    return list(zip(texts, reasons, strict=True))


async def all_asked(
    url: str, given: Sequence[Case], clients: int
) -> tuple[list[list[tuple[str, str]] | None], list[int]]:
    """The texts that all clients get, so many at once, and the memory after each hundredth part of them."""
    gate, said, sizes, done = asyncio.Semaphore(clients), progress(200), list[int](), 0
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:

        async def one(k: int, case: Case) -> list[tuple[str, str]] | None:
            nonlocal done
            async with gate:
                texts = await asked(client, case, Random(k))
            done += 1
            if done % max(1, len(given) // 100) == 0:
                sizes.append(resident())
            said("requests", done, len(given))
            return texts

        return list(await asyncio.gather(*(one(k, case) for k, case in enumerate(given)))), sizes


def compare(requests: int, *, clients: int, batch: int, seed: int, longest: int) -> Counter[str]:
    """Texts that are the same, that differ, requests whose client left, and the bytes of memory added."""
    given, alone, counts = cases(requests, seed, longest), Alone(longest), Counter[str]()
    with serving(busy(), MODEL, batch=batch, queue=1 << 16) as (url, _):
        answers, sizes = asyncio.run(all_asked(url, given, clients))
    half = sizes[len(sizes) // 2 :]
    counts["bytes added"] = half[-1] - half[0]
    for case, texts in zip(given, answers, strict=True):
        if texts is None:
            counts["left"] += 1
            continue
        expected = alone.text(case.body)
        for text in texts:
            same = text == expected
            counts["same" if same else "different"] += 1
            if not same:
                print(json.dumps({"body": case.body, "served": text, "alone": expected}))
    return counts


def busy() -> Decoder:
    """The server's decoder: three drafters, a bad one, and a policy that tries them all."""
    from draftwise import method
    from draftwise.build import build_drafters, build_target, compile_target, eos_ids
    from draftwise.specs import LoadOptions, parse_drafters, parse_target

    load = LoadOptions(dtype="float32", device="cpu")
    spec = parse_target(MODEL, load)
    target, model, tokenizer = build_target(spec)
    specs = parse_drafters(["zoo:general", "ngram", "suffix"], load)
    team = build_drafters(specs, target, tokenizer, MODEL)
    compile_target(spec, target)
    everyone = {**team, "bad": SimDrafter(following(target.vocab_size, 1))}
    keep_prefixes([target, *everyone.values()], KEPT)
    chosen = method("random?arms=drafters*lengths", list(everyone))
    return Decoder(target, everyone, chosen, tokenizer, eos=eos_ids(model, tokenizer), seed=0)


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8, help="texts decoded together")
    args = parser.parse_args()
    counts = compare(args.requests, clients=args.clients, batch=args.batch, seed=0, longest=LENGTHS[-1])
    print(json.dumps(dict(counts)))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    start(main)
