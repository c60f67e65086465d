"""Draftwise on a GPU: passes by width, exactness, speed of text beside Transformers' modes, waits a round.

    python -m studies.speed.gpu --out OUT                 everything, in at most eight minutes
    python -m studies.speed.gpu --out OUT --only passes   one section

Rows are written to OUT/gpu.json as they are measured, and a table is printed at the end. Sections:

- `passes`: milliseconds of a pass of random weights in the shapes of published models, eager and as a CUDA
  graph, against the time that reading the weights takes.
- `exact`: the texts of `none`, `static-4` and `auto`, alone and in batches, against those of `none` alone, in
  float32, bfloat16 and float16.
- `text`: tokens a second of the bundled target made heavier (its text stays the same), by policy, eager and
  with graphs, and of Transformers' plain, lookup, assisted and compiled modes.
- `rounds`: waits, launches and copies a round, and the share of the time in which the GPU idles.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from draftwise.errors import UserError
from studies.common.command import command, listed, numbers, start
from studies.common.prompts import spread

PAGE = "docs/explanation/pass-costs.md"
DRAFTERS = ("zoo:general", "ngram", "suffix")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")
COPIES = ("Memcpy DtoH", "Memcpy HtoD")
SHAPES = {  # class, hidden and feed-forward size, layers, heads, those of keys, their size, vocabulary, tied
    "Qwen3-0.6B": ("Qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "Llama-3.2-1B": ("Llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "Qwen3-8B": ("Qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
}
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings"),
)
Row = dict[str, Any]


def event_counts(names: Iterable[str], rounds: int) -> dict[str, float]:
    """Waits, launches and copies a round, from the names of the profiler's events."""
    kinds = (*WAITS, *LAUNCHES, *COPIES)
    counts = Counter(kind for name in names for kind in kinds if name.startswith(kind))
    return {kind: round(counts[kind] / rounds, 2) for kind in sorted(counts)}


def equal_texts(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many texts are equal, and of how many."""
    return sum(list(a) == list(b) for a, b in zip(one, other, strict=True)), len(one)


def device_name() -> str:
    """The name of the GPU.

    Raises:
        UserError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device here: run this on a machine with a GPU")
    return str(torch.cuda.get_device_name(0))


def median_ms(function: Callable[[], object], *, repeats: int = 15, first: int = 3) -> float:
    """Median milliseconds of a call, after a few others."""
    import torch

    times = []
    for number in range(first + repeats):
        torch.cuda.synchronize()
        begin = perf_counter()
        function()
        torch.cuda.synchronize()
        if number >= first:
            times.append(perf_counter() - begin)
    return round(sorted(times)[repeats // 2] * 1e3, 3)


def model_of_shape(name: str) -> Any:
    """Random weights in bfloat16 in the shape of a published model."""
    import torch
    import transformers

    kind, *sizes = SHAPES[name]
    config = getattr(transformers, f"{kind}Config")(**dict(zip(SIZES, sizes, strict=True)))
    config.max_position_embeddings = 8192
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    model.train(False)
    return model.requires_grad_(False)


def heavier(times: int, layers: int, dtype: str) -> Any:
    """The bundled target with more layers that add nothing and wider ones: the same text, heavier passes."""
    import torch
    from torch import nn

    from draftwise.models.load import load_model

    model = load_model("zoo:target", dtype=dtype, device="cpu", trust_remote_code=False)
    base = list(model.model.layers)
    extra = [copy.deepcopy(base[at % len(base)]) for at in range(max(0, layers - len(base)))]
    for layer in extra:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    mixed: list[Any] = []
    for at, layer in enumerate(base):
        mixed += [layer, *extra[at * len(extra) // len(base) : (at + 1) * len(extra) // len(base)]]
    for at, layer in enumerate(mixed):
        layer.self_attn.layer_idx = at
    model.model.layers = nn.ModuleList(mixed)
    model.config.num_hidden_layers = len(mixed)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[0]] * len(mixed)
    model.to("cuda")  # type: ignore[arg-type]
    with torch.no_grad():
        for layer in mixed if times > 1 else ():
            _widen(layer.mlp, times)
    model.config.intermediate_size *= times
    model.train(False)
    return model


def _widen(mlp: Any, times: int) -> None:
    """More hidden units, whose outputs are multiplied by zero."""
    import torch
    from torch import nn

    more = (times - 1) * mlp.gate_proj.out_features
    for linear in (mlp.gate_proj, mlp.up_proj):
        w = linear.weight
        noise = 0.02 * torch.randn(more, w.shape[1], device=w.device, dtype=w.dtype)
        linear.weight = nn.Parameter(torch.cat([w, noise]), requires_grad=False)
        linear.out_features = linear.weight.shape[0]
    w = mlp.down_proj.weight
    zeros = torch.zeros(w.shape[0], more, device=w.device, dtype=w.dtype)
    mlp.down_proj.weight = nn.Parameter(torch.cat([w, zeros], 1), requires_grad=False)
    mlp.down_proj.in_features = mlp.down_proj.weight.shape[1]


def measure_passes(asked: Any) -> Iterator[Row]:
    """Milliseconds of a pass after 512 tokens, by model, batch, width and kind of pass."""
    import torch

    from draftwise.models.probe import rows_of
    from draftwise.models.runner import PassInput
    from draftwise.models.runner.executors.inductor_cpu import compile_runner

    for name in asked.shapes:
        model = model_of_shape(name)
        size = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
        for kind in ("eager", "graph"):
            runner = rows_of(model, probe=False)
            begin = perf_counter()
            if kind == "graph":
                compile_runner(Part(runner), "on")
            row = {"section": "passes", "model": name, "gb": round(size / 1e9, 2), "kind": kind}
            yield row | {"state": getattr(runner.compiler, "state", "eager"), "s": perf_counter() - begin}
            for batch in (1, 8):
                while len(runner.request_ids) < batch:
                    runner.open(len(runner.request_ids))
                ids = torch.randint(5, 1000, (batch, 512)).tolist()
                runner.cached_lengths[:] = [0] * batch
                runner.forward(PassInput(0, ids, 1, slots=2048))
                for width in asked.widths:

                    def run(width: int = width, batch: int = batch, runner: Any = runner) -> None:
                        runner.forward(PassInput(0, [[7] * width] * batch, width, slots=2048))
                        runner.cached_lengths[:] = [512] * batch

                    yield row | {"batch": batch, "width": width, "ms": median_ms(run)}
            del runner
        del model
        torch.cuda.empty_cache()


class Part:
    """What has a runner, as targets and drafters do."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner


def decoders(
    model: Any, asked: Any, dtype: str, policies: Sequence[str], mode: str
) -> Iterator[tuple[str, Any]]:
    """A decoder of each policy, over the same model."""
    from draftwise import Decoder

    for policy in policies:
        yield (
            policy,
            Decoder.from_pretrained(
                model,
                tokenizer="zoo:target",
                drafters=list(DRAFTERS),
                policy=policy,
                dtype=dtype,
                device="cuda",
                compile=mode,
            ),
        )


def write_all(
    decoder: Any, prompts: Sequence[Sequence[int]], new: int, batch: int
) -> tuple[list[Any], float, int]:
    """All texts in the order of the prompts, the seconds that they took, and their rounds."""
    import torch

    from draftwise import Sampling

    texts: dict[int, list[int]] = {}
    torch.cuda.synchronize()
    begin, rounds = perf_counter(), 0
    for one in decoder.loop.run(prompts, Sampling(max_new_tokens=new, eos=decoder.eos), batch=batch):
        texts.setdefault(one.request, []).extend(one.tokens)
        rounds += 1
    torch.cuda.synchronize()
    return [texts[key] for key in sorted(texts)], perf_counter() - begin, rounds


def measure_exact(asked: Any) -> Iterator[Row]:
    """Whether texts are those of plain decoding alone, by precision, policy and batch."""
    for dtype in asked.precisions:
        model, plain = heavier(1, 12, dtype), None
        for policy, decoder in decoders(model, asked, dtype, ("none", "static-4", "auto"), "on"):
            prompts = [decoder.encode(text) for text in spread(asked.prompts)]
            for batch in asked.batches:
                texts, seconds, _ = write_all(decoder, prompts, 48, batch)
                plain = plain or texts
                rate = sum(map(len, texts)) / seconds
                row = {"section": "exact", "dtype": dtype, "method": policy, "batch": batch}
                yield row | {"equal": equal_texts(plain, texts), "tokens_per_s": round(rate, 1)}


def measure_text(asked: Any) -> Iterator[Row]:
    """Tokens a second at batch 1 by size of the target, policy and kind of pass, and of Transformers."""
    import torch

    for times, layers in ((1, 12), (30, 28)):
        model, plain = heavier(times, layers, "bfloat16"), None
        size = round(sum(p.numel() for p in model.parameters()) / 1e9, 2)
        policies = ("none", "static-4", "static-8?drafter=ngram", "static-16?drafter=suffix", "auto")
        prompts: list[list[int]] = []
        for mode in ("on", "off"):
            for policy, decoder in decoders(model, asked, "bfloat16", policies, mode):
                prompts = prompts or [decoder.encode(text) for text in spread(asked.prompts)]
                write_all(decoder, prompts[:2], 64, 1)
                texts, seconds, rounds = write_all(decoder, prompts, 96, 1)
                plain = plain or texts
                total = sum(map(len, texts))
                yield {
                    "section": "text",
                    "billions": size,
                    "method": f"{policy}, {'graphs' if mode == 'on' else 'eager'}",
                    "tokens_per_s": round(total / seconds, 1),
                    "ms_per_round": round(1e3 * seconds / rounds, 3),
                    "per_round": round(total / rounds, 2),
                    "equal": equal_texts(plain, texts),
                    "gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
                }
        yield from measure_transformers(model, prompts, plain or [], size)
        del model
        torch.cuda.empty_cache()


def measure_transformers(
    model: Any, prompts: Sequence[Sequence[int]], plain: Any, size: float
) -> Iterator[Row]:
    """Tokens a second of Transformers' own modes, after texts that are not counted."""
    import torch

    from draftwise.models.load import load_model

    small = load_model("zoo:general", dtype="bfloat16", device="cuda", trust_remote_code=False)
    modes: dict[str, dict[str, Any]] = {
        "plain": {},
        "lookup": {"prompt_lookup_num_tokens": 8},
        "assisted": {"assistant_model": small},
        "static, compiled": {"cache_implementation": "static"},
    }
    for name, more in modes.items():
        texts: list[Any] = []
        begin = 0.0
        for number, prompt in enumerate([*prompts[:3], *prompts]):
            if number == 3:
                torch.cuda.synchronize()
                texts, begin = [], perf_counter()
            ids = torch.tensor([list(prompt)], device="cuda")
            settings: Any = {"max_new_tokens": 96, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2}
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings, **more)
            texts.append(out[0, len(prompt) :].tolist())
        torch.cuda.synchronize()
        rate = sum(map(len, texts)) / (perf_counter() - begin)
        same = sum(a == b[: len(a)] for a, b in zip(texts, plain, strict=True))
        row = {"section": "text", "billions": size, "method": f"Transformers, {name}"}
        yield row | {"tokens_per_s": round(rate, 1), "equal": (same, len(texts))}


def measure_rounds(asked: Any) -> Iterator[Row]:
    """Waits, launches and copies a round at 1 B, and the share of the time in which the GPU idles."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from draftwise import Sampling

    model = heavier(30, 28, "bfloat16")
    for policy, decoder in decoders(model, asked, "bfloat16", ("none", "static-4", "auto"), "on"):
        prompts = [decoder.encode(text) for text in spread(4)]
        write_all(decoder, prompts, 64, 1)
        loop, rounds = decoder.loop, 0
        loop.add(prompts[0], Sampling(max_new_tokens=160))
        loop.step()
        torch.cuda.synchronize()
        begin = perf_counter()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            while loop.open and rounds < 30:
                loop.step()
                rounds += 1
            torch.cuda.synchronize()
        seconds = perf_counter() - begin
        events = list(seen.events())
        busy = sum(event.device_time for event in events if event.device_type.name == "CUDA") / 1e6
        row = {"section": "rounds", "method": policy, "rounds": rounds, "idle": round(1 - busy / seconds, 3)}
        yield row | event_counts((event.name for event in events), rounds)
        while loop.open:
            loop.step()


SECTIONS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "passes": measure_passes,
    "text": measure_text,
    "rounds": measure_rounds,
    "exact": measure_exact,
}


def show(rows: Sequence[Row]) -> None:
    """Print a table of each section."""
    for section in SECTIONS:
        mine = [row for row in rows if row["section"] == section and "error" not in row]
        names = list(dict.fromkeys(name for row in mine for name in row if name != "section"))
        table = Table(*names, title=section)
        for row in mine:
            table.add_row(*(str(row.get(name, "")) for name in names))
        Console(width=200).print(table)


def main() -> int:
    """Measure the sections until the time is over; 1 if a float32 text differs."""
    parser = command(__doc__, PAGE)
    parser.add_argument(
        "--only", type=listed, default=",".join(SECTIONS), help="sections, with commas between"
    )
    parser.add_argument("--precisions", type=listed, default="float32,bfloat16,float16")
    parser.add_argument("--batches", type=numbers, default="1,8,32")
    parser.add_argument("--shapes", type=listed, default="Qwen3-0.6B,Llama-3.2-1B,Qwen3-8B")
    parser.add_argument("--widths", type=numbers, default="1,2,4,8,16,32")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="sections that are not begun by then are left out"
    )
    parser.add_argument("--out", type=Path, required=True, help="gpu.json is written to this folder")
    asked = parser.parse_args()
    if wrong := next((name for name in asked.only if name not in SECTIONS), None):
        raise UserError(f"--only {wrong}: choose from {', '.join(SECTIONS)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [{"section": "device", "name": device_name()}]
    begin = perf_counter()
    for section in asked.only:
        try:
            for row in SECTIONS[section](asked):
                rows.append(row | {"at": round(perf_counter() - begin, 1)})
                print(json.dumps(rows[-1]), flush=True)
                (asked.out / "gpu.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
                if perf_counter() - begin > 60 * asked.minutes:
                    break
        except RuntimeError as error:  # one section's fault leaves the others their time
            rows.append({"section": section, "error": str(error)[:600]})
            print(json.dumps(rows[-1]), flush=True)
    show(rows)
    equal = [row["equal"] for row in rows if row["section"] == "exact" and row.get("dtype") == "float32"]
    return int(any(same < every for same, every in equal))


if __name__ == "__main__":
    start(main)
