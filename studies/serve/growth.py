"""Do schemas and grammars that grow when they are written out hurt a server, or those who use it?

A server of its own, with so much memory that it may address, gets schemas, Lark rules, GBNF rules and
regexes whose parts double or repeat from level to level, some from clients that leave. Beside them four
clients stream greedy texts. Printed are the numbers of answers by status, the most memory of the server and
of the processes that compile, the streamed texts that differ from those before, and the seconds between
pieces, alone and beside.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from studies.common.command import command, progress, start

PAGE = "docs/how-to/serve.md"
MODEL = "zoo:target"
LEVELS = (3, 6, 10, 14, 18, 24, 40)
LEAVES: tuple[Any, ...] = (
    {"type": "string", "pattern": "a+"},
    {"type": "object", "properties": {"x": {"type": "integer"}}},
    {"type": "array", "items": {"type": "number", "minimum": 0.5}},
    {"enum": ["a", 1, None]},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "object"}]},
)
Place = Callable[[Any], dict[str, Any]]
PLACES: tuple[Place, ...] = (
    lambda ref: {"allOf": [ref, ref]},
    lambda ref: {"anyOf": [ref, {"items": ref}]},
    lambda ref: {"allOf": [{"anyOf": [ref, {"minItems": 1}]}, {"anyOf": [ref, {"maxItems": 9}]}]},
    lambda ref: {"type": "object", "properties": {"x": ref | {"type": "object"}, "y": ref | {"minItems": 1}}},
    lambda ref: {"properties": {"x": {"allOf": [ref, ref]}, "y": ref}},
    lambda ref: {"patternProperties": {"^a": ref | {"type": "object"}, "^b": ref | {"maxItems": 3}}},
    lambda ref: {
        "additionalProperties": ref | {"type": "object"},
        "properties": {"x": ref | {"minLength": 1}},
    },
    lambda ref: {"prefixItems": [ref | {"type": "array"}, ref, ref | {"type": "array"}], "items": False},
    lambda ref: {"items": ref, "minItems": 20, "maxItems": 50},
)
# Each makes a rule of the next level's name; the words of a terminal are written in capitals.
RULES = ("{0} {0}", "{0} | {0} {0}", "({0} {0}){{1,40}}", '{0}? "x" {0}', "({0} | /[a-z]+/)*", "{0}{{0,60}}")
MARKED = (
    "{0} {0}",
    '{0} "x" | {0} "y"',
    "{0}{{1,40}}",
    "/[ab]{{1,9}}/ {0}",
    "({0} & /[a-f]{{1,30}}/)",
    "~{0}",
)
PARTS = ("({0}){{1,40}}", "({0}|b{0})", "({0}{0})", r"(\p{{L}}|{0}){{0,30}}", "(.*{0}.{{9}})", "({0})*c?")


def growing(draw: Random) -> dict[str, Any]:
    """Return the field of a body that asks for a form which grows."""
    levels, kind = draw.choice(LEVELS), draw.randrange(5)
    if kind < 2:
        schema = {"name": "a", "schema": _schema(draw, levels), "strict": draw.random() < 0.7}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if kind == 2:
        text = "a"
        for _ in range(levels):
            longer = draw.choice(PARTS).format(text)
            text = longer if len(longer) < 20_000 else text
        return {"regex": text}
    name, choices = ("T", MARKED) if kind == 3 else ("r", RULES)
    rules = [f"{name}{n}: {draw.choice(choices).format(f'{name}{n + 1}')}" for n in range(levels)]
    lark = "\n".join([f"start: {name}0", *rules, f'{name}{levels}: "a"'])
    if kind == 4 and draw.random() < 0.3:
        lark = lark.replace("start:", "root:").replace(": ", " ::= ").replace("/", "")
    return {"grammar": lark}


def _schema(draw: Random, levels: int) -> dict[str, Any]:
    one, mixed = draw.choice(PLACES), draw.random() < 0.5
    defs = {}
    for n in range(levels):
        place = draw.choice(PLACES) if mixed else one
        defs[f"a{n}"] = place({"$ref": f"#/$defs/a{n + 1}"})
    return {"$ref": "#/$defs/a0", "$defs": defs | {f"a{levels}": draw.choice(LEAVES)}}


@contextmanager
def limited(memory: int) -> Iterator[tuple[str, int]]:
    """A server that may address so many bytes: its address and its process."""
    serve = [
        sys.executable,
        "-m",
        "draftwise",
        "serve",
        "--target",
        MODEL,
        "--drafters",
        "ngram",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        serve,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    ) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "http://" in line)
            yield line.split()[-1].removesuffix("/v1"), process.pid
        finally:
            process.terminate()


@dataclass
class Watch:
    """What is counted."""

    answers: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    gaps: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "beside": []})
    memory: dict[str, int] = field(default_factory=lambda: {"server": 0, "compiling": 0})
    over: bool = False


async def stream(client: httpx.AsyncClient, prompt: str, gaps: list[float]) -> str:
    """Return a greedy text; the seconds between its pieces are added to `gaps`."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 48, "temperature": 0.0, "stream": True}
    text, last = "", 0.0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for row in answer.aiter_lines():
            if row.startswith("data: {"):
                text += json.loads(row[6:])["choices"][0]["text"]
                now = time.perf_counter()
                gaps += [now - last] if last else []
                last = now
    return text


async def attack(client: httpx.AsyncClient, todo: Iterator[int], seed: int, watch: Watch, said: Any) -> None:
    """Send what grows until nothing is left to do; one client in ten leaves."""
    for k in todo:
        draw = Random(f"{seed} {k}")
        body = {
            "model": MODEL,
            "prompt": "ab",
            "max_tokens": draw.choice((1, 1, 1, 8)),
            "seed": k,
            **growing(draw),
        }
        timeout = draw.random() * 0.3 if draw.random() < 0.1 else None
        try:
            answer = await client.post("/v1/completions", json=body, timeout=timeout)
            watch.answers[str(answer.status_code)] += 1
            if answer.status_code >= 500:
                print(json.dumps({"status": answer.status_code, "answer": answer.text[:300], "body": body}))
        except httpx.TimeoutException:
            watch.answers["left"] += 1
        said(k + 1)


async def look(pid: int, watch: Watch) -> None:
    """Look at the memory of the server and its descendants while it lasts."""
    while not watch.over:
        sizes = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            except OSError:  # it has ended
                continue
            sizes[int(lines["Pid"])] = (int(lines["PPid"]), int(lines.get("VmRSS", "0 kB").split()[0]) >> 10)
        below = {pid}
        while more := {one for one, (parent, _) in sizes.items() if parent in below} - below:
            below |= more
        if pid in sizes:
            now = {"server": sizes[pid][1], "compiling": sum(sizes[one][1] for one in below - {pid})}
            watch.memory = {name: max(watch.memory[name], size) for name, size in now.items()}
        await asyncio.sleep(0.2)


async def run(
    url: str, pid: int, forms: int, minutes: float, seed: int, attackers: int, watch: Watch
) -> None:
    """Stream texts alone, and then while forms that grow are sent from another address."""
    prompts = ["Once upon a time", "The sum of two and", "def sort(", "Ann and Bob"]
    other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    options: dict[str, Any] = {"base_url": url, "timeout": None, "trust_env": False}
    async with httpx.AsyncClient(**options) as good, httpx.AsyncClient(transport=other, **options) as bad:
        first = [await stream(good, prompt, []) for prompt in prompts]
        await asyncio.gather(*(stream(good, prompt, watch.gaps["alone"]) for prompt in prompts))
        end, said = time.monotonic() + 60 * minutes, progress(500)

        def told(done: int) -> None:
            said("forms", done, forms)

        todo = takewhile(lambda _: time.monotonic() < end, range(forms))

        async def read(prompt: str, expected: str) -> None:
            while not watch.over:
                same = await stream(good, prompt, watch.gaps["beside"]) == expected
                watch.texts["same" if same else "different"] += 1

        readers = [read(*pair) for pair in zip(prompts, first, strict=True)]
        tasks = [asyncio.ensure_future(one) for one in (*readers, look(pid, watch))]
        await asyncio.gather(*(attack(bad, todo, seed, watch, told) for _ in range(attackers)))
        watch.over = True
        await asyncio.gather(*tasks)


def main() -> int:
    """Run the study."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--forms", type=int, default=5000)
    parser.add_argument("--attackers", type=int, default=8, help="connections that send them")
    parser.add_argument("--memory", type=float, default=8, help="GiB that the server may address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="after which no more are sent")
    asked, watch = parser.parse_args(), Watch()
    with limited(int(asked.memory * (1 << 30))) as (url, pid):
        asyncio.run(run(url, pid, asked.forms, asked.minutes, asked.seed, asked.attackers, watch))
    marks = {"p50": 50, "p99": 99, "most": 100}
    gaps = {
        k: {m: round(float(np.percentile(v, q)), 3) for m, q in marks.items()} for k, v in watch.gaps.items()
    }
    told = {"answers": watch.answers, "texts": watch.texts, "MiB": watch.memory, "gaps": gaps}
    print(json.dumps(told))
    bad = watch.texts["different"] + sum(n for status, n in watch.answers.items() if status.startswith("5"))
    return int(bad > 0)


if __name__ == "__main__":
    start(main)
