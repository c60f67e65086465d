"""A few made-up tokens, read in the ways of `ModelRunner` and by Transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from random import Random
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ..stages import quiet

PROMPT, NEW = 10, 5  # tokens; a short window adds enough to exceed it
LONGEST = 64  # longest window that is exceeded; a longer one costs too much
LEAST = 3e-4  # relative errors below it are rounding: mistakes change logits by hundredths of their spread
TIMES = 100  # rounding in all layers changes logits by a few times what it changes in the embeddings
HALF = (torch.float16, torch.bfloat16)
STEADY = 3e-3  # relative error, about a hundredth of a logit: beyond it greedy text depends on a pass's width
QUANTISERS = ("torch.ao", "torchao", "bitsandbytes", "optimum.quanto", "hqq")  # of modules in place


class Readings:
    """The logits from which `generate` decodes `NEW` tokens after a prompt, the reference for all ways.

    `tokens` are the prompt and the generated tokens; `logits[i]` are those after the first `n + i`. `noise`
    is the relative error of one plain pass over all tokens. It is rounding alone if the model reads a text in
    pieces as it does at once; where rounding the embeddings changes much less, it does not, and that change
    counts instead. `widest` is the largest difference at one position.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        device, text = model.get_input_embeddings().weight.device, model.config.get_text_config(decoder=True)
        borders = [getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
        self.n = PROMPT + max(border for border in (0, *borders) if border <= LONGEST)
        self.tokens, self.logits = own_text(model, made_up(self.n, model.config))
        self.quantised, self.widest = _quantised(model), 0.0
        self.noise = self._noise(device)
        self.small: Readings | None = None  # those of a small model of the class, which has to agree as well

    @property
    def tolerance(self) -> float:
        """The relative error above which a reading counts as wrong: eight times the noise, at least the
        rounding error of the dtype, and at most what rounding can explain.

        Models whose quantisation depends on the pass are coarser than their dtype, and count as bfloat16.
        """
        eps = max(torch.finfo(self.model.dtype).eps, torch.finfo(torch.float32).eps)
        if self.quantised and self.coarse:
            eps = max(eps, torch.finfo(torch.bfloat16).eps)
        return float(min(max(8 * self.noise, 8 * eps, LEAST), 30 * eps**0.5, 0.3))

    @property
    def lively(self) -> bool:
        """Whether the logits depend on the text at all; otherwise no mistake would show."""
        return relative_error(self.logits[0], self.logits[1]) > self.tolerance

    def error(self, said: Tensor, after: Sequence[int]) -> float:
        """The relative error of logits, shape (positions, vocabulary), after `n + after[i]` tokens each.

        Compared with the model's own logits. Returns the maximum over positions; in half precision, where
        rounding may route a token to other experts, the median.
        """
        errors = sorted(relative_error(row, self.logits[i]) for row, i in zip(said, after, strict=True))
        return errors[(len(errors) - 1) // 2] if self.coarse else errors[-1]

    @property
    def coarse(self) -> bool:
        return self.model.dtype in HALF or (self.quantised and self.widest > STEADY)

    @property
    def unsteady(self) -> float:
        """How far a quantised model's logits move with the width of a pass; 0 if rounding explains it.

        Activations that are quantised by a pass's largest value are rounded otherwise in every pass.
        """
        explained = max(8 * torch.finfo(self.model.dtype).eps, STEADY)
        moves = self.quantised and self.widest > explained
        return self.widest * float(self.logits.float().std()) if moves else 0.0

    @torch.inference_mode()
    def _noise(self, device: torch.device) -> float:
        ids, places = torch.tensor([self.tokens], device=device), range(len(self.tokens) - self.n + 1)
        try:
            at_once = self.model(input_ids=ids).logits[0, self.n - 1 :]
            self.widest = max(map(relative_error, at_once, self.logits))
            noise = self.error(at_once, places)
            if 8 * noise <= LEAST or self.coarse:
                return noise
            with _rounded(self.model.get_input_embeddings()):
                other = self.model(input_ids=ids).logits[0, self.n - 1 :]
            return min(noise, TIMES * max(map(relative_error, other, at_once)))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return 0.0  # the model itself reads differently from one plain pass; the least tolerance applies


@contextmanager
def _rounded(embeddings: torch.nn.Module) -> Iterator[None]:
    draw, thread = torch.Generator().manual_seed(0), get_ident()

    def disturbed(module: torch.nn.Module, inputs: Any, said: Tensor) -> Tensor:
        if get_ident() != thread:
            return said
        errors = torch.randn(said.shape, generator=draw).to(said) * torch.finfo(said.dtype).eps
        return said * (1 + errors)

    with embeddings.register_forward_hook(disturbed):
        yield


def made_up(n: int, config: Any) -> list[int]:
    """Token ids without special tokens, the same every time."""
    text = config.get_text_config(decoder=True)
    vocab_size = int(text.vocab_size)
    special = {
        value
        for part in (config, text)
        for name, value in vars(part).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }
    draw, made = Random(5), list[int]()
    while len(made) < n:
        token = draw.randrange(vocab_size)
        if token not in special or vocab_size <= len(special):
            made.append(token)
    return made


@torch.inference_mode()
def own_text(model: Any, prompt: list[int]) -> tuple[list[int], Tensor]:
    """The tokens that `generate` writes, without the last, and the logits it decodes from."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    ids = torch.tensor([prompt], device=model.get_input_embeddings().weight.device)
    settings: Any = GenerationConfig
    with quiet():
        out = type(inner).generate(
            with_settings(inner, settings()),
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings(
                max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True
            ),
        )
    logits = torch.stack([row[0] for row in out.logits])
    return out.sequences[0, : len(prompt) + NEW - 1].tolist(), logits


def with_settings(model: Any, settings: Any) -> Any:
    """Return the same modules with these settings, and with none of the model's own, such as beams.

    The model itself is left alone, since other threads may call its `generate`. What hangs on the object is
    left out: a tuned prompt.
    """
    alone = copy(model)
    alone.generation_config = settings
    vars(alone).pop("prepare_inputs_for_generation", None)
    return alone


def relative_error(said: Tensor, own: Tensor) -> float:
    """The error relative to the spread of the model's own logits; infinite if there are NaNs."""
    own, said = own.double(), said.to(own.device)[: own.shape[-1]].double()
    found = float((said - own).norm() / (own - own.mean()).norm().clamp(min=1e-30))
    return found if found == found else float("inf")


def _quantised(model: Any) -> bool:
    if getattr(model, "hf_quantizer", None) or getattr(model.config, "quantization_config", None):
        return True
    if any(hasattr(weight, "__tensor_flatten__") for weight in model.parameters()):
        return True
    return any(type(module).__module__.startswith(QUANTISERS) for module in model.modules())
