"""The bundled models, loaded once for all tests."""

from __future__ import annotations

from typing import Any

import pytest


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
