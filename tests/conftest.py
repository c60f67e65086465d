"""No network, and the bundled models loaded once for all tests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: tests ask no server for anything


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No draft is too slow where a test does not say so: another busy process must not fail one."""
    from draftwise.hosts.follow import Follower
    from draftwise.loop import Loop

    patch = pytest.MonkeyPatch()
    for kind in (Loop, Follower):
        patch.setitem(kind.__init__.__kwdefaults__ or {}, "slow_seconds", math.inf)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from draftwise.models import load_tokenizer

    return load_tokenizer("zoo:target")


@pytest.fixture(scope="session")
def decoder() -> Any:
    from draftwise import Decoder

    return Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram", "suffix"])


@pytest.fixture(scope="session")
def plain_model() -> Any:
    """The bundled target as Transformers loads it, in float32."""
    from draftwise.models import load_model

    return load_model("zoo:target")
