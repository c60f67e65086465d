"""Memory of a server over requests of all kinds, one in ten of whose clients hangs up.

The memory of the process is read after every hundredth part of the requests. Printed are what it was at half
of them and at the end, and the largest difference over the second half.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import httpx

from studies.common.command import command, progress, start
from studies.serve.exact import MODEL, asked, busy, cases
from studies.serve.local import resident, serving

PAGE = "docs/how-to/serve.md"


async def soak(url: str, requests: int, clients: int, seed: int, longest: int) -> tuple[list[int], int]:
    """Send the requests, so many at once: the memory after each hundredth part, and how many clients left."""
    gate, sizes, done, left, said = asyncio.Semaphore(clients), list[int](), 0, 0, progress(200)
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:

        async def one(k: int, case: Any) -> None:
            nonlocal done, left
            async with gate:
                texts = await asked(client, case, Random(k))
            done, left = done + 1, left + (texts is None)
            if done % max(1, requests // 100) == 0:
                sizes.append(resident())
            said("requests", done, requests)

        await asyncio.gather(*(one(k, case) for k, case in enumerate(cases(requests, seed, longest))))
    return sizes, left


def main() -> None:
    """Run the study."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8, help="texts decoded together")
    parser.add_argument("--longest", type=int, default=34, help="tokens of the longest text")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with serving(busy(), MODEL, batch=args.batch, queue=1 << 16) as (url, service):
        sizes, left = asyncio.run(soak(url, args.requests, args.clients, args.seed, args.longest))
        open_ = len(service.engine.running) + len(service.engine.waiting)
    half = sizes[len(sizes) // 2 :]
    figures = {"requests": args.requests, "left": left, "running": open_, "half": half[0], "end": half[-1]}
    print(json.dumps(figures | {"difference": max(half) - min(half)}))


if __name__ == "__main__":
    start(main)
