"""How often a round waits for the device: counted on a device in name only, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Counts = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def counts() -> Counts:
    line = [sys.executable, "-m", "tests.targets.count_syncs"]
    ran = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: Counts = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_greedy_round_without_a_model_drafter_waits_once(counts: Counts, drafter: str, batch: int) -> None:
    assert counts[f"greedy {drafter} {batch}"] == {"read models/distributions.py:choices": 1.0}


@pytest.mark.parametrize("batch", [1, 4])
def test_a_greedy_model_drafter_waits_once_a_step_for_all_requests(counts: Counts, batch: int) -> None:
    found = counts[f"greedy lm {batch}"]
    assert found.pop("read models/distributions.py:choices") == 1.0
    assert found.pop("read models/distributions.py:most_likely") == 4.0, "drafts have four tokens"
    assert found == {}


@pytest.mark.parametrize("batch", [1, 4])
def test_a_sampled_round_waits_once_a_request_and_accepted_token(counts: Counts, batch: int) -> None:
    assert counts[f"sampled none {batch}"] == {"read models/distributions.py:draw": batch}
    found = counts[f"sampled ngram {batch}"]
    assert set(found) == {"read models/distributions.py:draw"}
    assert found["read models/distributions.py:draw"] >= batch


def test_nothing_that_is_copied_to_the_device_in_a_pass_waits(counts: Counts) -> None:
    uploads = [at for found in counts.values() for at in found if at.startswith("upload ")]
    assert not [at for at in uploads if "models/runner.py" in at or "cache.py:place" in at]
