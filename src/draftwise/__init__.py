"""Draftwise: large language models write faster, without changing a word of what they write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .accept import accept  # at once, or importing the module of that name would hide the function

if TYPE_CHECKING:
    from .catalogue import Method, method
    from .chat import Chat
    from .decoder import Decoder
    from .errors import GenerationError, UserError
    from .events import Stats
    from .hosts.transformers import transformers_generate
    from .hosts.vllm.options import vllm_config
    from .loop import Loop
    from .outputs import Output
    from .roles import Drafter, Policy, Target
    from .text import Piece
    from .types import (
        Arm,
        Context,
        Decision,
        Draft,
        Feedback,
        Outcome,
        Request,
        Round,
        Sampling,
        Stop,
    )

__version__ = "0.1.0"

_HOME = {
    "Chat": "chat",
    "Decoder": "decoder",
    "Output": "outputs",
    "GenerationError": "errors",
    "UserError": "errors",
    "Stats": "events",
    "transformers_generate": "hosts.transformers",
    "vllm_config": "hosts.vllm.options",
    "Loop": "loop",
    "Method": "catalogue",
    "method": "catalogue",
    "Drafter": "roles",
    "Policy": "roles",
    "Target": "roles",
    "Piece": "text",
}

__all__ = [
    "Arm",
    "Chat",
    "Context",
    "Decision",
    "Decoder",
    "Draft",
    "Drafter",
    "Feedback",
    "GenerationError",
    "Loop",
    "Method",
    "Outcome",
    "Output",
    "Piece",
    "Policy",
    "Request",
    "Round",
    "Sampling",
    "Stats",
    "Stop",
    "Target",
    "UserError",
    "accept",
    "method",
    "transformers_generate",
    "vllm_config",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that importing draftwise stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'types')}", __name__), name)


def __dir__() -> list[str]:
    return __all__
