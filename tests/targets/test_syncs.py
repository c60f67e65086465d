"""How often a round waits for the device: counted on a device in name only, in a process of its own."""

from __future__ import annotations

import pytest

from tests.forked import result_of

Counts = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def counts() -> Counts:
    found: Counts = result_of(counted_syncs)
    return found


def counted_syncs() -> Counts:
    from tests.targets.count_syncs import all_counts  # registers the device for good

    return all_counts()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_greedy_round_without_a_model_drafter_waits_once(counts: Counts, drafter: str, batch: int) -> None:
    assert counts[f"greedy {drafter} {batch}"] == {"read targets/hf.py:read": 1.0}


@pytest.mark.parametrize("batch", [1, 4])
def test_a_greedy_model_drafter_waits_once_a_step_for_all_requests(counts: Counts, batch: int) -> None:
    found = counts[f"greedy lm {batch}"]
    assert found.pop("read targets/hf.py:read") == 1.0
    assert found.pop("read models/distributions.py:most_likely") == 4.0, "drafts have four tokens"
    assert found == {}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_sampled_round_without_a_model_drafter_waits_once(counts: Counts, drafter: str, batch: int) -> None:
    assert counts[f"sampled {drafter} {batch}"] == {"read targets/device_scores.py:read_all": 1.0}


@pytest.mark.parametrize("batch", [1, 4])
def test_a_sampled_draft_of_a_model_is_verified_in_one_wait(counts: Counts, batch: int) -> None:
    found = counts[f"sampled lm {batch}"]
    assert found["read targets/device_scores.py:read_all"] == 1.0


def test_a_penalised_greedy_token_waits_once(counts: Counts) -> None:
    assert counts["penalised"] == {"read models/distributions.py:top_token": 1.0}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_with_graphs_a_round_with_a_model_drafter_waits_twice(counts: Counts, how: str, batch: int) -> None:
    """Once for the draft and once for the verdict."""
    found = counts[f"{how} graphs {batch}"]
    assert found.pop("read models/runner/drafts.py:read_numbers") == 1.0
    assert sum(found.values()) == 1.0 and next(iter(found)).startswith("read ")


def test_nothing_that_is_copied_to_the_device_in_a_pass_waits(counts: Counts) -> None:
    uploads = [at for found in counts.values() for at in found if at.startswith("upload ")]
    assert not uploads
