"""The catalogue: every named policy is one composition of arms, a learner, a reward and a scope."""

from .compose import Method, default, method, weighs_cascades

__all__ = ["Method", "default", "method", "weighs_cascades"]
