"""Faults in vLLM 0.32's verification of drafts on a CPU, detected by a test call and patched.

Its CPU kernel that repeats a request's sampling settings for each drafted token writes integers only:
temperatures and top-p keep their old memory contents, so sampled drafts, including those of vLLM's own
methods, are accepted by a wrong distribution. A step without drafts also fails if a request uses top-k alone.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


def mend(like: Any) -> list[str]:
    """Patch the faults found in this process; returns their names. `like` is any tensor of the device."""
    try:
        sampler = import_module("vllm.v1.sample.rejection_sampler")
        mended = [name for name, wrong in (CHECKS.items()) if wrong(sampler, like)]
    except (ImportError, AttributeError):
        return []  # another vLLM, which is left alone
    for name in mended:
        setattr(sampler, name, FIXES[name](getattr(sampler, name)))
    return mended


def _spreads_wrongly(sampler: ModuleType, like: Any) -> bool:
    """Whether the kernel fails for two settings with one and two drafted tokens."""
    settings, ends = like.new_tensor([0.5, 0.25]).float(), like.new_tensor([1, 3]).int()
    spread = sampler.expand_batch_to_tokens(settings, ends, 3)
    return bool(spread.tolist() != [0.5, 0.25, 0.25])


def _fails_when_empty(sampler: ModuleType, like: Any) -> bool:
    try:
        sampler.apply_top_k_top_p(like.new_zeros((0, 4)).float(), like.new_zeros(0).int(), None)
    except RuntimeError:
        return True
    return False


def _spread(original: Any) -> Any:
    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)).long()
        return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)

    return expand_batch_to_tokens


def _unless_empty(original: Any) -> Any:
    def apply_top_k_top_p(logits: Any, k: Any, p: Any) -> Any:
        return original(logits, k, p) if logits.shape[0] else logits

    return apply_top_k_top_p


CHECKS = {"expand_batch_to_tokens": _spreads_wrongly, "apply_top_k_top_p": _fails_when_empty}
FIXES = {"expand_batch_to_tokens": _spread, "apply_top_k_top_p": _unless_empty}
