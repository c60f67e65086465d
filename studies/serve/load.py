"""Speed of a busy server: `auto`, a fixed length and no speculation under the same load, in turns.

Each setting is a server of its own, `draftwise serve` in a process. So many clients at once ask for the texts
of some prompts of Spec-Bench, through the official client, until all are written; then the next setting has
its turn, and after all of them the next number of clients, in another order. The settings of a round write
the same texts, those of the next round others, so that no prompt is in a server's cache. A server is stopped
(SIGSTOP) while it is another's turn, so that none takes time from another. With `--vllm` the same load goes
to vLLM, plain and with its own n-gram drafts.

Reported for each setting and number of clients: tokens per second and their ratio to those of the plain
setting, with the range over the rounds; the time to the first token, and the longest times between two pieces
of a text (50 and 99 % of them are shorter).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import openai

from draftwise.data import spec_bench
from draftwise.models.load import locate
from draftwise.models.threads import cores
from draftwise.serve.run import bind
from studies.common.command import command, listed, numbers, start
from studies.common.tables import heading, row

PAGE = "docs/explanation/smollm2.md"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
PLAIN = "none"
VLLM = {"vllm": [], "vllm-ngram": ["--speculative-config", NGRAM]}


@dataclass
class Seen:
    """Times and tokens that the clients of one turn saw."""

    seconds: float = 0.0
    tokens: int = 0
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def figures(turns: Sequence[Seen], plain: Sequence[Seen]) -> dict[str, float]:
    """The figures of a setting's turns, times in milliseconds; `plain` are those of the plain setting."""
    figure_by_name = {"tokens_per_s": sum(one.tokens for one in turns) / sum(one.seconds for one in turns)}
    if ratios := [one.speed / other.speed for one, other in zip(turns, plain, strict=False)]:
        seconds = [sum(one.seconds for one in both) for both in (plain, turns)]
        figure_by_name |= {"of_plain": seconds[0] / seconds[1], "least": min(ratios), "most": max(ratios)}
    for name in ("first", "gap"):
        values = [value for one in turns for value in getattr(one, f"{name}s")]
        for part in (50, 99):
            late = float(np.percentile(values, part)) if values else 0.0
            figure_by_name[f"{name}_p{part}_ms"] = 1000 * late
    return figure_by_name


def ask(client: openai.AsyncOpenAI, prompt: str, chat: bool, **options: Any) -> Awaitable[AsyncIterator[Any]]:
    """A streamed greedy text: the answer in a chat, or how a text continues."""
    options |= {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    if chat:
        return client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **options)
    return client.completions.create(prompt=prompt, **options)


async def one(stream: Awaitable[AsyncIterator[Any]], seen: Seen) -> None:
    """A text."""
    began = last = time.perf_counter()
    first = True
    async for chunk in await stream:
        now = time.perf_counter()
        if any(choice.delta.content if hasattr(choice, "delta") else choice.text for choice in chunk.choices):
            seen.firsts.append(now - began) if first else seen.gaps.append(now - last)
            first, last = False, now
        if chunk.usage is not None:
            seen.tokens += chunk.usage.completion_tokens


Ask = Callable[[openai.AsyncOpenAI, str], Awaitable[AsyncIterator[Any]]]


async def turn(url: str, send: Ask, prompts: Iterable[str], clients: int) -> Seen:
    """So many clients, which share the prompts, until all texts are written."""
    seen, waiting, began = Seen(), iter(prompts), time.perf_counter()
    async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=None, max_retries=0) as client:

        async def loop() -> None:
            for prompt in waiting:
                await one(send(client, prompt), seen)

        await asyncio.gather(*(loop() for _ in range(clients)))
    seen.seconds = time.perf_counter() - began
    return seen


@dataclass
class Server:
    """A server: its address, and the process, the first of a group of its own."""

    url: str
    group: int

    def sleep(self) -> Server:
        """Stop it until its turn."""
        os.killpg(self.group, signal.SIGSTOP)
        return self

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Its turn: it runs within the block alone."""
        os.killpg(self.group, signal.SIGCONT)
        try:
            yield
        finally:
            self.sleep()


@contextmanager
def run(words: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which ends with the block."""
    with subprocess.Popen(words, text=True, start_new_session=True, **more) as process:
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGCONT):  # one that sleeps hears nothing
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


@contextmanager
def ours(target: str, drafters: str, policy: str, batch: int) -> Iterator[Server]:
    """A server of ours."""
    words = [sys.executable, "-m", "draftwise", "serve", "--target", target, "--name", target]
    words += shlex.split(f"--port 0 --no-log-requests --batch {batch} --queue 4096")
    words += ["--policy", policy]
    words += ["--drafters", drafters] if policy != "none" else []
    # After a sleep it would take what the others used meanwhile for the present load.
    threads = {"OMP_NUM_THREADS": str(cores())} | os.environ
    with run(words, stdout=subprocess.PIPE, env=threads) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"this server does not start: {shlex.join(words)}")
        yield Server(line.split()[-1], process.pid)


@contextmanager
def vllm(python: Path, target: str, batch: int, more: Sequence[str]) -> Iterator[Server]:
    """A server of vLLM."""
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    where = str(locate(target)) if target.startswith("zoo:") else target
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", where, "--port", str(port)]
    words += ["--max-num-seqs", str(batch), "--dtype", "float32", "--served-model-name", target, *more]
    # All cores, as ours has, and memory for the texts of one batch.
    settings = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "2"} | os.environ
    with run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=settings) as process:
        while not _healthy(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None:
                raise SystemExit(f"this server does not start: {shlex.join(words)}")
            time.sleep(0.5)
        yield Server(f"http://127.0.0.1:{port}/v1", process.pid)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def measured(args: Any) -> dict[str, dict[str, list[Seen]]]:
    """The turns of each number of clients and setting."""
    draw = Random(0)
    prompts = [prompt.text[:1000] for prompt in spec_bench()]
    turns: dict[str, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for policy in args.policies:
            process = ours(args.target, args.drafters, policy, args.batch)
            servers[policy] = stack.enter_context(process).sleep()
        for name, more in VLLM.items() if args.vllm is not None else ():
            process = vllm(args.vllm, args.target, args.batch, more)
            servers[name] = stack.enter_context(process).sleep()

        def turn_of(name: str, clients: int, texts: Sequence[str]) -> Seen:
            server = servers[name]
            with server.awake():
                send = partial(ask, chat=args.chat, model=args.target, max_tokens=args.most)
                return asyncio.run(turn(server.url, send, texts, clients))

        for name in servers:  # what is compiled or learnt first does not count
            print(f"  {name}", file=sys.stderr, flush=True)
            turn_of(name, 2, draw.sample(prompts, args.warm))
        for _ in range(args.rounds):
            for clients in args.clients:
                texts = draw.sample(prompts, args.texts)
                for name in draw.sample(list(servers), len(servers)):
                    seen = turn_of(name, clients, texts)
                    turns[str(clients)][name].append(seen)
                    print(f"  {clients} {name} {seen.speed:.1f} tokens/s", file=sys.stderr, flush=True)
    return turns


def table(turns_by_load: dict[str, dict[str, list[Seen]]]) -> str:
    """The figures as Markdown."""
    lines = list[str]()
    for level, rows in turns_by_load.items():
        for setting, turns in rows.items():
            cells = figures(turns, rows.get(PLAIN, ()))
            lines = lines or [heading("clients", "setting", *cells)]
            lines.append(row(level, setting, *(f"{value:.4g}" for value in cells.values())))
    return "\n".join(lines)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", default="zoo:general,ngram,suffix")
    parser.add_argument(
        "--policies", type=listed, default="auto,static-3,none", help="settings that take turns"
    )
    parser.add_argument("--clients", type=numbers, default="1,4,16,64")
    parser.add_argument("--texts", type=int, default=64, help="texts of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each setting and number of clients")
    parser.add_argument("--warm", type=int, default=24, help="texts before anything is measured")
    parser.add_argument("--batch", type=int, default=64, help="texts decoded together")
    parser.add_argument("--most", type=int, default=64, help="tokens of a text")
    parser.add_argument(
        "--chat", action="store_true", help="ask in a chat, as a model of instructions expects"
    )
    parser.add_argument("--vllm", type=Path, help="the Python that has vLLM")
    args = parser.parse_args()
    print(table(measured(args)))


if __name__ == "__main__":
    start(main)
