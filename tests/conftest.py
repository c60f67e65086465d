"""No network, and the bundled models loaded once for all tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: tests ask no server for anything


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
