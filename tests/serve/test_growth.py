"""Forms that grow when they are written out: a text or one clear refusal, and no memory."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

pytest.importorskip("llguidance")

from studies.serve.local import counting, resident
from tests.effort import THOROUGH

from .conftest import MODEL
from .growing import growing


def test_what_grows_takes_no_memory_and_breaks_no_server(serve: Any, tokenizer: Any) -> None:
    server, before = serve(counting(tokenizer)), resident()
    for k in range(5000 if THOROUGH else 12):
        body = {"model": MODEL, "prompt": "ab", "max_tokens": 1, **growing(Random(f"test {k}"))}
        answer = server.client.post("/v1/completions", json=body)
        assert answer.status_code in (200, 400), (body, answer.text)
        said = answer.json().get("error", {}).get("message", "")
        assert "\n" not in said and "NoExtension" not in said and len(said) < 400
    assert resident() - before < 1 << 30
