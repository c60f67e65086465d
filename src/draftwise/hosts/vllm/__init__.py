"""Draftwise inside vLLM: `LLM(..., speculative_config=vllm_config(drafters=[...], policy="auto"))`.

vLLM loads the proposer by name: `draftwise.hosts.vllm.Proposer`, with options as in
`draftwise.hosts.vllm.Proposer?drafters=ngram,suffix&policy=auto`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .options import Options, vllm_config
from .report import totals

__all__ = ["Options", "totals", "vllm_config"]


def __getattr__(name: str) -> Any:
    """The proposer class with the options in its name."""
    head, _, query = name.partition("?")
    if head != "Proposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    options = Options.parse(query)
    from .proposer import Proposer

    return partial(Proposer, options=options)
