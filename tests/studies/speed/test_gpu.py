"""The parts of the GPU study that need no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftwise.errors import UserError
from studies.speed import gpu


def test_waits_and_copies_are_counted_a_round() -> None:
    names = ["cudaStreamSynchronize", "aten::mm", "cudaStreamSynchronize", "Memcpy DtoH (Device -> Pageable)"]
    assert gpu.event_counts(names, 2) == {"Memcpy DtoH": 0.5, "cudaStreamSynchronize": 1.0}
    assert gpu.event_counts([], 3) == {}


def test_texts_are_compared_one_by_one() -> None:
    assert gpu.equal_texts([[1, 2], [3]], [[1, 2], [4]]) == (1, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no CUDA device"):
        gpu.device_name()
    line = [sys.executable, "-m", "studies.speed.gpu", "--out", str(tmp_path)]
    root = Path(__file__).parents[3]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=root)
    assert ran.returncode == 1 and ran.stderr.startswith("error: PyTorch finds no CUDA device")
    assert len(ran.stderr.splitlines()) == 1 and not ran.stdout
