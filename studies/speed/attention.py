"""What attention over many rows takes, by how the keys and values of a KV cache lie in memory.

    python -m studies.speed.attention

Each pass reads the caches of all layers with PyTorch's own attention, once with the slots of a head side by
side and once with the heads of a token side by side, in turn; and in calls of one row, each up to its own
length. `read` adds up the same numbers. The caches are larger than a processor's own memory, as they are in
use.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from studies.common.command import command, numbers, start

PAGE = "docs/explanation/pass-costs.md"
OURS = "slots of a head"  # as the cache has it
ORDERS = {OURS: (0, 1, 2, 3), "heads of a token": (0, 2, 1, 3)}  # of (rows, heads, slots, size)
SPARE = 112  # slots beyond the longest text, as after the cache has grown

Caches = Sequence[tuple[Tensor, Tensor]]


def main() -> None:
    """Measure, and print one line of JSON for each batch and width."""
    args = arguments()
    for rows in args.batches:
        for width in args.widths:
            found = measure(args, rows, width)
            base = found["heads of a token"]
            ratios = sorted(a / b for a, b in zip(found[OURS], base, strict=True))
            said = {f"{name}, ms": round(1e3 * median(seconds), 2) for name, seconds in found.items()}
            spread = {"ratio": median(ratios), "from": ratios[0], "to": ratios[-1]}
            print(
                json.dumps(
                    {"rows": rows, "width": width} | said | {k: round(v, 2) for k, v in spread.items()}
                )
            )


@torch.inference_mode()
def measure(args: Namespace, rows: int, width: int) -> dict[str, list[float]]:
    """Seconds of attention in all layers, by how the caches lie, in turn."""
    query = torch.randn(rows, args.heads, width, args.size)
    lengths = torch.linspace(args.tokens // 4, args.tokens, rows).long()[:, None, None, None]
    hidden = torch.arange(args.tokens) > lengths - width + torch.arange(width)[:, None]
    mask = hidden * torch.finfo(query.dtype).min
    passes: dict[str, Callable[[], object]] = {}
    for name, order in ORDERS.items():
        caches = [cache(args, rows, order) for _ in range(args.layers)]
        passes[name] = partial(together, query, caches, mask)
        if name == OURS:
            passes["read"] = partial(read, caches)
            passes["rows apart"] = partial(apart, query, caches, mask, lengths.flatten().tolist())
    found: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(args.repeats + 1):  # the first warms up
        for name, run in passes.items():
            begun = perf_counter()
            run()
            if turn:
                found[name].append(perf_counter() - begun)
    return found


def together(query: Tensor, caches: Caches, mask: Tensor) -> list[Tensor]:
    """Attention of all rows in one call for each layer, up to the longest text."""
    return [attention(query, keys, values, attn_mask=mask) for keys, values in caches]


def apart(query: Tensor, caches: Caches, mask: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Attention of each row up to its own length, in a call of its own."""
    return [torch.cat([_row(query, layer, mask, i, n) for i, n in enumerate(lengths)]) for layer in caches]


def _row(query: Tensor, layer: tuple[Tensor, Tensor], mask: Tensor, i: int, n: int) -> Tensor:
    keys, values = (held[i : i + 1, :, :n] for held in layer)
    return attention(query[i : i + 1], keys, values, attn_mask=mask[i : i + 1, ..., :n])


def read(caches: Caches) -> list[Tensor]:
    """Read all keys and values once."""
    return [keys.sum() + values.sum() for keys, values in caches]


def cache(args: Namespace, rows: int, order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The visible keys and values of a layer, shape (rows, heads, tokens, size), stored in this order."""
    shape = (rows, args.heads, args.tokens + SPARE, args.size)
    back = [order.index(k) for k in range(4)]
    keys, values = (torch.randn([shape[k] for k in order]).permute(back)[:, :, : args.tokens] for _ in "kv")
    return keys, values


def arguments() -> Namespace:
    """What to measure."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--widths", type=numbers, default=[1, 4])
    parser.add_argument(
        "--tokens", type=int, default=400, help="of the longest text; the shortest has a quarter"
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    start(main)
