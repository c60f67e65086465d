"""Is `auto` as fast as no speculation, on a quiet machine and beside other work? How long do clients wait?

Two servers, with `auto` and without speculation, take turns: the same prompts for both, each of them new, for
1, 4 and 16 clients, first on the machine as it is and then beside processes that are started here and do
nothing but work. A third server has 16 rows instead of 8. One that does not have its turn is stopped.

Reported are tokens per second and the longest gaps between two pieces of a text (99 % are shorter), of both
and `auto` over none turn by turn; and the time to the first token with 8 and with 16 rows. Nothing else
should run meanwhile; with the defaults it takes some six minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any

from draftwise.data import spec_bench
from studies.common.command import command, numbers, start
from studies.serve.load import Seen, Server, ours, run, turn

PAGE = "docs/how-to/serve.md"
ROWS = 8  # of the first two servers, and twice as many of the third
WORK = "while True: pass"
Turns = dict[str, list[dict[str, float]]]


@contextmanager
def beside(processes: int) -> Iterator[None]:
    """So many processes that do nothing but work, until the block ends."""
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(run([sys.executable, "-c", WORK]))
        yield


def fresh(prompts: list[str], name: str, client: int) -> Iterator[str]:
    """The prompts of one client in one turn: by their number none begins as another one did."""
    draw = Random(f"{name} {client}")
    for n in count():
        yield f"{name}.{client}.{n}: {draw.choice(prompts)}"


def measured(asked: Any) -> dict[str, dict[str, Turns]]:
    """The figures of each turn, by machine, number of clients and server."""
    prompts = [prompt.text[: asked.characters] for prompt in spec_bench()]
    servers: dict[str, Server] = {}

    def seen(server: str, name: str, clients: int, seconds: float) -> Seen:
        one, texts = servers[server], partial(fresh, prompts, name)
        with one.awake():
            return asyncio.run(turn(one.url, asked.target, texts, clients, seconds, asked.most))

    found: dict[str, dict[str, Turns]] = {}
    with ExitStack() as stack:
        for server, policy, rows in (("auto", "auto", ROWS), ("none", "none", ROWS), ("16 rows", "auto", 16)):
            made = ours(asked.target, asked.drafters, policy, rows)
            servers[server] = stack.enter_context(made).sleep()
            seen(server, "warm", 4, asked.warm)
        for machine, processes in (("quiet", 0), ("busy", asked.busy)):
            with beside(processes):
                found[machine] = {str(clients): {} for clients in numbers(asked.clients)}
                for k, clients in enumerate(numbers(asked.clients) * asked.turns):
                    names = ["auto", "none", *(["16 rows"] if clients > ROWS else [])]
                    for server in names if k % 2 else names[::-1]:
                        row = seen(server, f"{machine} {k}", clients, asked.seconds).row()
                        found[machine][str(clients)].setdefault(server, []).append(row)
                        print(f"  {machine} {clients} {server} {row}", file=sys.stderr, flush=True)
    return found


def mean(rows: list[dict[str, float]], name: str) -> float:
    """The mean over all turns."""
    return sum(row[name] for row in rows) / len(rows)


def over(turns: Turns, name: str) -> str:
    """`auto` over none, and the same turn by turn."""
    pairs = [(a[name], b[name]) for a, b in zip(turns["auto"], turns["none"], strict=True)]
    each = ", ".join(f"{a / b:.2f}" if b else "-" for a, b in pairs)
    below = mean(turns["none"], name)
    return f"{mean(turns['auto'], name) / below:.2f} ({each})" if below else "-"


def table(found: dict[str, dict[str, Turns]]) -> str:
    """The figures as Markdown."""
    lines = ["| machine | clients | tokens/s: auto, none | ratio | between, 99 %, ms: auto, none | ratio |"]
    lines.append("|---|---:|---:|---|---:|---|")
    later = ["", "| machine | clients | rows | tokens/s | first token, ms: half, 99 % |"]
    later.append("|---|---:|---:|---:|---:|")
    for machine, levels in found.items():
        for clients, turns in levels.items():
            cells = [machine, clients]
            for name in ("tokens_per_s", "between_p99_ms"):
                cells += [f"{mean(turns['auto'], name):.1f}, {mean(turns['none'], name):.1f}"]
                cells += [over(turns, name)]
            lines.append(f"| {' | '.join(cells)} |")
            for server, rows in (("auto", ROWS), ("16 rows", 16)) if "16 rows" in turns else ():
                first = [mean(turns[server], f"first_p{part}_ms") for part in (50, 99)]
                speed = mean(turns[server], "tokens_per_s")
                cells = [machine, clients, str(rows), f"{speed:.1f}", f"{first[0]:.0f}, {first[1]:.0f}"]
                later.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *later])


def main() -> None:
    """Run the study."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target", help="the target: a model's folder, for example")
    parser.add_argument("--drafters", default="ngram,suffix")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=2, help="of each server, machine and number of clients")
    parser.add_argument("--warm", type=float, default=8.0, help="seconds before anything is measured")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="processes that only work")
    parser.add_argument("--most", type=int, default=48, help="tokens of a text")
    parser.add_argument("--characters", type=int, default=600, help="of a prompt")
    parser.add_argument("--json", action="store_true", help="print the figures of all turns as JSON")
    asked = parser.parse_args()
    found = measured(asked)
    print(json.dumps(found, indent=1) if asked.json else table(found))


if __name__ == "__main__":
    start(main)
