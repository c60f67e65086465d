"""The models that training is tested on serve the studies too."""

from tests.train.conftest import world

__all__ = ["world"]
