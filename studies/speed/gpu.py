"""Draftwise on a GPU: exactness in three precisions, passes against graphs, tokens a second, waits a round.

    python -m studies.speed.gpu --target Qwen/Qwen3-0.6B --out OUT

For each precision: whether the texts of drafting equal those of plain decoding in the same loop, tokens a
second of our plain decoding and of drafting at each batch size, those of Transformers' `generate`, eager and
compiled (a static cache and CUDA graphs), and how often a round waits for the GPU, by PyTorch's profiler. In
float32 texts must be equal; in the others passes of other widths may round differently.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from draftwise.errors import UserError
from studies.common.command import command, listed, numbers, start
from studies.common.prompts import spread

PAGE = "docs/explanation/pass-costs.md"

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = ("Memcpy DtoH", "Memcpy HtoD")
Row = dict[str, Any]


def waits(names: Iterable[str], rounds: int) -> dict[str, float]:
    """Waits and copies a round, from the names of the profiler's events."""
    found = Counter(kind for name in names for kind in (*WAITS, *COPIES) if name.startswith(kind))
    return {kind: found[kind] / rounds for kind in sorted(found)}


def alike(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Count the texts that are equal."""
    return sum(list(a) == list(b) for a, b in zip(one, other, strict=True)), len(one)


def check() -> str:
    """The name of the GPU.

    Raises:
        UserError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device here: run this on a machine with a GPU")
    return str(torch.cuda.get_device_name(0))


def written(loop: Any, prompts: Sequence[Sequence[int]], sampling: Any, batch: int) -> tuple[Any, Row]:
    """All texts by the loop, in the order of the prompts, and their tokens a second."""
    import torch

    texts: dict[int, list[int]] = {}
    torch.cuda.synchronize()
    began, rounds = perf_counter(), 0
    for round in loop.run(prompts, sampling, batch=batch):
        texts.setdefault(round.request, []).extend(round.tokens)
        rounds += 1
    torch.cuda.synchronize()
    seconds = perf_counter() - began
    made = [texts[key] for key in sorted(texts)]
    return made, {"tokens_per_s": sum(map(len, made)) / seconds, "rounds": rounds}


def profiled(loop: Any, prompt: Sequence[int], sampling: Any) -> dict[str, float]:
    """Waits a round of one request, without the round that reads its prompt."""
    from torch.profiler import ProfilerActivity, profile

    loop.add(prompt, sampling)
    loop.step()
    rounds = 0
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        while loop.open and rounds < 20:
            loop.step()
            rounds += 1
    while loop.open:
        loop.step()
    return waits((event.name for event in seen.events()), rounds)


def generated(model: Any, prompts: Sequence[Sequence[int]], new: int, *, compiled: bool) -> Row:
    """Tokens a second of Transformers' own greedy decoding, one text after another, after a first one."""
    import torch

    more = {"cache_implementation": "static"} if compiled else {"disable_compile": True}
    asked: Any = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0} | more
    total, began = 0, 0.0
    for number, prompt in enumerate([prompts[0], *prompts]):
        if number == 1:
            torch.cuda.synchronize()
            began = perf_counter()
        ids = torch.tensor([list(prompt)], device="cuda")
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
        total += (out.shape[1] - ids.shape[1]) * (number > 0)
    torch.cuda.synchronize()
    return {"tokens_per_s": total / (perf_counter() - began)}


def measured(asked: Any, precision: str) -> list[Row]:
    """All rows of one precision."""
    from draftwise import Decoder, Sampling

    loops: dict[str, Any] = {}
    encoded: list[list[int]] = []
    model: Any = None
    tokenizer: Any = None
    eos = frozenset[int]()
    for policy in ["none", *asked.policies]:
        decoder = Decoder.from_pretrained(
            model if model is not None else asked.target,
            tokenizer=tokenizer,
            drafters=asked.drafters,
            policy=policy,
            dtype=precision,
            device="cuda",
        )
        model, tokenizer, eos = decoder.loop.target.runner.model, decoder.tokenizer, decoder.eos  # type: ignore[attr-defined]
        loops[policy] = decoder.loop
        encoded = encoded or [decoder.encode(text) for text in spread(asked.prompts)]
    sampling = Sampling(max_new_tokens=asked.new, eos=eos)
    rows: list[Row] = []
    for batch in asked.batches:
        plain: Any = None
        for policy, loop in loops.items():
            written(loop, encoded[:1], sampling, batch)
            texts, row = written(loop, encoded, sampling, batch)
            plain = plain or texts
            rows.append(
                {"precision": precision, "batch": batch, "method": policy, "equal": alike(plain, texts)} | row
            )
    for policy, loop in loops.items():
        rows.append({"precision": precision, "method": policy, "waits": profiled(loop, encoded[0], sampling)})
    for compiled in (False, True):
        name = f"generate, {'compiled' if compiled else 'eager'}"
        row = generated(model, encoded, asked.new, compiled=compiled)
        rows.append({"precision": precision, "batch": 1, "method": name} | row)
    return rows


def main() -> int:
    """Measure all precisions and print one line a row; 1 if a float32 text differs."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default="zoo:general,ngram")
    parser.add_argument("--policies", type=listed, default="auto,static-4")
    parser.add_argument("--precisions", type=listed, default="float32,bfloat16,float16")
    parser.add_argument("--batches", type=numbers, default="1,2,4,8,16,32,64")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new", type=int, default=96, help="tokens of a text at most")
    parser.add_argument("--out", type=Path, help="also write gpu.json to this folder")
    asked = parser.parse_args()
    print(check())
    rows = [row for precision in asked.precisions for row in measured(asked, precision)]
    for row in rows:
        print(json.dumps(row))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "gpu.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    exact = [row["equal"] for row in rows if row["precision"] == "float32" and "equal" in row]
    return int(any(same < all_ for same, all_ in exact))


if __name__ == "__main__":
    start(main)
