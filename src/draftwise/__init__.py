"""Draftwise: large language models write faster, without changing a word of what they write."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.accept import accept  # at once, or importing the module of that name would hide the function

if TYPE_CHECKING:
    from .core.arms import Arm, Context, Decision, Stop
    from .core.drafts import Draft
    from .core.loop import Loop
    from .core.outcomes import Feedback, Outcome
    from .core.request import Request
    from .core.roles import Drafter, Policy, Target
    from .core.round import Round, Stats
    from .core.sampling import Sampling
    from .errors import GenerationError, UserError
    from .generation.decoder import Chat, Decoder
    from .generation.output import Output
    from .generation.text import Piece
    from .hosts.transformers import transformers_generate
    from .hosts.vllm.options import vllm_config
    from .models.gguf.export import export_gguf
    from .policies.catalogue import Method, method

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the application decides what is shown

_HOME = {
    "core.arms": ("Arm", "Context", "Decision", "Stop"),
    "core.drafts": ("Draft",),
    "core.loop": ("Loop",),
    "core.outcomes": ("Feedback", "Outcome"),
    "core.request": ("Request",),
    "core.roles": ("Drafter", "Policy", "Target"),
    "core.round": ("Round", "Stats"),
    "core.sampling": ("Sampling",),
    "errors": ("GenerationError", "UserError"),
    "generation.decoder": ("Chat", "Decoder"),
    "generation.output": ("Output",),
    "generation.text": ("Piece",),
    "hosts.transformers": ("transformers_generate",),
    "hosts.vllm.options": ("vllm_config",),
    "models.gguf.export": ("export_gguf",),
    "policies.catalogue": ("Method", "method"),
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
    "export_gguf",
    "method",
    "transformers_generate",
    "vllm_config",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that importing draftwise stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
    home = next(module for module, names in _HOME.items() if name in names)
    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__
