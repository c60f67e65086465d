"""What the parts of the GPU study share: models, decoders with graphs or without, and a clock that waits."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from draftwise.errors import UserError
from studies.common.texts import spread, write

DRAFTERS = ("zoo:general", "ngram", "suffix")


def device_name() -> str:
    """The name of the GPU.

    Raises:
        UserError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device here: run this on a machine with a GPU, or give --cpu")
    return str(torch.cuda.get_device_name(0))


class Bench:
    """What the parts share: the device, its clock, and the options of the command line."""

    def __init__(self, args: Namespace) -> None:
        self.args, self.device = args, "cpu" if args.cpu else "cuda"
        self.state = "eager"  # how the passes of the latest decoder are run

    def wait(self) -> None:
        """Until the GPU has done everything."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def gigabytes(self) -> float:
        """The most memory that this process has had on the GPU."""
        import torch

        return round(torch.cuda.max_memory_allocated() / 1e9, 2) if self.device == "cuda" else 0.0

    def median_ms(self, function: Callable[[], object]) -> float:
        """Median milliseconds of 15 calls, after three others."""
        times = []
        for number in range(18):
            self.wait()
            begin = perf_counter()
            function()
            self.wait()
            if number >= 3:
                times.append(perf_counter() - begin)
        return round(median(times) * 1e3, 3)

    def use_graphs(self, *parts: Any, exact: Any = None) -> str:
        """Run models as graphs, on a CPU as the functions that would be captured; returns how they run.

        Passes of the part `exact` are exact.
        """
        from draftwise.models.runner.executors.compile import compile_runner
        from draftwise.models.runner.executors.cuda_graphs import CudaGraphs

        states = []
        for part in parts:
            if self.device == "cuda" or part is exact:
                compile_runner(part, "auto" if self.device == "cuda" else "off", exact=part is exact)
                states.append(str(part.runner.compiler.state))
            else:
                part.runner.use(CudaGraphs(part.runner, capture=lambda f, inputs: partial(f, *inputs)))
                states.append("graphs that are not captured")
        return "; ".join(states)

    def decoder(
        self,
        model: Any,
        policy: str,
        dtype: str,
        *,
        graphs: bool,
        drafters: Any = DRAFTERS,
        exact: bool = False,
    ) -> Any:
        """A decoder over a loaded model, with passes as graphs, which may be exact, or eager."""
        from draftwise import Decoder

        decoder = Decoder.from_pretrained(
            model,
            tokenizer="zoo:target",
            drafters=list(drafters),
            policy=policy,
            dtype=dtype,
            device=self.device,
            compile="off",
            pack=False,
        )
        self.state = "eager"
        if graphs:
            parts = [decoder.loop.target, *decoder.loop.pool.drafters.values()]
            models = [part for part in parts if hasattr(part, "runner")]
            self.state = self.use_graphs(*models, exact=models[0] if exact else None)
        return decoder

    def encoded(self, decoder: Any) -> list[list[int]]:
        """The prompts as tokens."""
        return [decoder.encode(text) for text in spread(self.args.prompts)]

    def write_all(
        self, decoder: Any, prompts: Sequence[Sequence[int]], new: int, batch: int
    ) -> tuple[list[Any], float, int]:
        """All texts in the order of the prompts, the seconds that they took, and their rounds."""
        from draftwise import Sampling

        sampling = Sampling(max_new_tokens=new, eos=decoder.eos)
        self.wait()
        begin = perf_counter()
        texts, rounds = write(decoder.loop, prompts, sampling, batch=batch)
        self.wait()
        return texts, perf_counter() - begin, len(rounds)

    def target(self, dtype: str, times: int = 1, layers: int = 12) -> Any:
        """The bundled target with more layers that add nothing, and wider: the same text, heavier passes."""
        import torch

        from draftwise.models.load import load_model

        model = load_model("zoo:target", dtype=dtype, device="cpu", trust_remote_code=False)
        if layers > len(model.model.layers):
            deepen(model, layers)
        if times > 1:
            widened(model, times)
        model.requires_grad_(False)
        model.to(torch.device(self.device))  # type: ignore[arg-type]
        model.train(False)
        return model


def widened(model: Any, times: int) -> None:
    """Make feed-forward layers so many times as wide; logits stay the same up to rounding.

    The new columns read the hidden state with random weights and write nothing: they are multiplied with 0.
    """
    import torch
    from torch import nn

    def grow(layer: Any, more: Any, dim: int) -> None:
        layer.weight = nn.Parameter(torch.cat([layer.weight.data, more.to(layer.weight.dtype)], dim))
        layer.out_features, layer.in_features = layer.weight.shape

    for layer in model.model.layers:
        mlp, more = layer.mlp, (times - 1) * layer.mlp.gate_proj.out_features
        for part in (mlp.gate_proj, mlp.up_proj):
            grow(part, torch.randn(more, part.in_features) * 0.02, 0)
        grow(mlp.down_proj, torch.zeros(mlp.down_proj.out_features, more), 1)
    model.config.intermediate_size *= times


def deepen(model: Any, layers: int) -> None:
    """Add layers that add nothing to what they read."""
    from torch import nn

    base = list(model.model.layers)
    extra = [copy.deepcopy(base[at % len(base)]) for at in range(layers - len(base))]
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
