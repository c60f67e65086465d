"""OpenMP's threads: a thread that has computed lets go of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.models import threads

STATUS = Path("/proc/self/status")
SCRIPT = """
import re, sys, torch
from draftwise import Decoder, transformers_generate
from draftwise.models.threads import _pause, release

if _pause() is None:
    assert "OpenMP" not in torch.__config__.parallel_info(), "not found"
    sys.exit("none")
count = lambda: int(re.search(r"Threads:\\s+(\\d+)", open("/proc/self/status").read())[1])
torch.set_num_threads(2)
before = count()
torch.ones(999, 999) @ torch.ones(999, 999)
computing = count()
release()
released = count()
assert float((torch.ones(9, 9) @ torch.ones(9, 9)).sum()) == 729
decoder = Decoder.from_pretrained("zoo:target", drafters="ngram", policy="static-2", compile="off")
def let_go():
    had = count()
    release()
    return had - count()
loaded = let_go()
decoder.generate("1 2 3", chat=False, max_new_tokens=4)
generated = let_go()
for piece in decoder.stream("1 2 3", chat=False, max_new_tokens=4):
    pass
streamed = let_go()
model = decoder.loop.target.rows.model
model.generate(
    torch.tensor([[7, 8, 9]]), max_new_tokens=4, do_sample=False,
    custom_generate=transformers_generate(drafters=["ngram"], policy="static-2"),
)
print(computing - before, released - before, loaded, generated, streamed, let_go())
"""


@pytest.mark.skipif(not STATUS.exists(), reason="no Linux")
def test_loading_and_generating_leave_no_threads_behind() -> None:
    settings = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=settings)
    if said.stderr.strip() == "none":
        pytest.skip("PyTorch has no OpenMP 5 here")
    assert said.returncode == 0, said.stderr
    computing, released, *left = map(int, said.stdout.split())
    assert (computing, released, left) == (1, 0, [0, 0, 0, 0])


def test_where_openmp_has_no_such_function_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: None) -> object:
        raise OSError("no handle")

    monkeypatch.setattr("ctypes.CDLL", none)
    threads.release()
