"""The seam between texts and models: a `PassInput` goes in, a `PassOutput` comes out, an executor runs it."""

from .passes import PassInput, PassOutput
from .runner import ModelRunner

__all__ = ["ModelRunner", "PassInput", "PassOutput"]
