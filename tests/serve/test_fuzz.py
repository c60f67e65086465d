"""Bodies that are no requests: errors that name what is wrong, and a server that goes on."""

from __future__ import annotations

import httpx
import pytest

pytest.importorskip("llguidance")

from studies.serve import fuzz as study
from tests.effort import THOROUGH

from .conftest import simulated


def test_no_body_breaks_the_server() -> None:
    n = 5000 if THOROUGH else 60
    decoder = None if THOROUGH else simulated()
    counts, errors = study.fuzz(n, seed=1, grammars=THOROUGH, decoder=decoder)
    assert not errors and counts["open"] == 0
    assert (
        sum(counts["answers"].values()) == n
        and counts["answers"]["400"] > n / 2 > counts["answers"]["200"] > 0
    )


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [(500, b"", "500"), (400, b"no", "shape"), (400, b'{"error": {"message": "a\\nb"}}', "one line")],
)
def test_a_wrong_answer_would_be_noticed(status: int, content: bytes, said: str) -> None:
    assert said in study.wrong(httpx.Response(status, content=content))
