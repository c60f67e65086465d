"""A small model that talks, for programs that use Transformers: the method changes none of its text."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="package")
def small() -> Any:
    """The bundled generalist, in float32; one layer, so that these tests take seconds."""
    from draftwise.models.load import load_model

    return load_model("zoo:general")


@pytest.fixture(scope="package")
def drafted(tokenizer: Any) -> Any:
    from draftwise import transformers_generate

    return transformers_generate(drafters=["ngram", "suffix"], policy="ucb1", tokenizer=tokenizer)
