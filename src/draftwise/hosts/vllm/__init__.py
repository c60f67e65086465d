"""Draftwise inside vLLM: `LLM(..., speculative_config=vllm_config(drafters=[...], policy="auto"))`.

vLLM loads the proposer by name: `draftwise.hosts.vllm.Proposer`, with options as in
`draftwise.hosts.vllm.Proposer?drafters=ngram,suffix&policy=auto`. Where one of vLLM's own proposers with a
model drafts (`vllm_arguments`), vLLM loads that, and its workers load `draftwise.hosts.vllm.Extension?...`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .options import Options, vllm_arguments, vllm_config
from .report import totals

__all__ = ["Options", "totals", "vllm_arguments", "vllm_config"]


def __getattr__(name: str) -> Any:
    """The class with the options in its name: the proposer, or the extension of vLLM's workers."""
    head = name.partition("?")[0]
    if head not in ("Proposer", "Extension"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    options = Options.parse(name)
    from .proposer import Proposer, extend_workers

    return extend_workers() if head == "Extension" else partial(Proposer, options=options)
