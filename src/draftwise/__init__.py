"""Draftwise: large language models write faster, without changing a word of what they write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.accept import accept  # at once, or importing the module of that name would hide the function

if TYPE_CHECKING:
    from .core.loop import Loop
    from .core.roles import Drafter, Policy, Target
    from .core.stats import Stats
    from .core.types import Arm, Context, Decision, Draft, Feedback, Outcome, Request, Round, Sampling, Stop
    from .errors import GenerationError, UserError
    from .generation.chat import Chat
    from .generation.decoder import Decoder
    from .generation.output import Output
    from .generation.text import Piece
    from .hosts.transformers import transformers_generate
    from .hosts.vllm.options import vllm_config
    from .policies.catalogue import Method, method

__version__ = "0.1.0"

_HOME = {
    "Chat": "generation.chat",
    "Decoder": "generation.decoder",
    "Output": "generation.output",
    "GenerationError": "errors",
    "UserError": "errors",
    "Sampling": "core.sampling",
    "Stats": "core.stats",
    "transformers_generate": "hosts.transformers",
    "vllm_config": "hosts.vllm.options",
    "Loop": "core.loop",
    "Method": "policies.catalogue",
    "method": "policies.catalogue",
    "Drafter": "core.roles",
    "Policy": "core.roles",
    "Target": "core.roles",
    "Piece": "generation.text",
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
    return getattr(import_module(f".{_HOME.get(name, 'core.types')}", __name__), name)


def __dir__() -> list[str]:
    return __all__
