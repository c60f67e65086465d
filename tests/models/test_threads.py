"""How many threads a model has beside other work; and one that has computed lets go of OpenMP's."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.models import steady, threads
from draftwise.models.gguf import sequences
from draftwise.models.gguf.sequences import Context
from draftwise.models.threads import Meter, Threads
from draftwise.policies.catalogue import method
from draftwise.targets import prefill
from draftwise.targets.hf import HFTarget
from tests.tiny import model

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
quick = {"compile": "off", "pack": False}
decoder = Decoder.from_pretrained("zoo:target", drafters="ngram", policy="static-2", **quick)
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
model = decoder.loop.target.runner.model
model.generate(
    torch.tensor([[7, 8, 9]]), max_new_tokens=4, do_sample=False,
    custom_generate=transformers_generate(drafters=["ngram"], policy="static-2"),
)
print(computing - before, released - before, loaded, generated, streamed, let_go())
"""


@pytest.mark.skipif(not STATUS.exists(), reason="no Linux")
def test_loading_and_generating_leave_no_threads_behind() -> None:
    # waiting threads that spin would only take the time of other tests
    settings = os.environ | {
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
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


class Machine:
    """PyTorch's number of threads, what others use of four cores, and a clock, all made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = 4, quota: int = 4) -> None:
        self.number, self.now, self.others, self.at = number, 10.0, 0.0, 10.0
        self.used = self.waited = 0.0
        for name in threads.FIXED:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.number)
        monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(self, "number", n))
        monkeypatch.setattr(threads, "_own_cores", lambda: 4)
        monkeypatch.setattr(threads, "quota", lambda: quota)
        monkeypatch.setattr(threads, "own_time", lambda: (self.used, self.waited))
        monkeypatch.setattr(threads, "_defaults", lambda: (4, 4))
        self.threads = Threads(cast("Meter", self), clock=lambda: self.now)

    def sample(self) -> dict[str, float]:
        self.at = self.now
        return {"others": self.others}

    def after(self, others: float, seconds: float = 1.0, waited: float = 1.0) -> int:
        """The number of threads once others have used so many cores for so long, and ours have `waited`."""
        self.others, self.now = others, self.now + seconds
        self.used, self.waited = self.used + self.number - waited, self.waited + waited
        self.threads.adapt()
        return self.number


def test_threads_leave_the_cores_to_others_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert [machine.after(n) for n in (0.0, 0.4, 1.0, 2.0, 3.9)] == [4, 4, 3, 2, 1]
    assert machine.after(0.4) == 3, "not as many as the rest of a busy core would do"
    assert machine.after(0.0, seconds=0.1) == 3, "too short a look says nothing"
    assert machine.after(0.0) == 4


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/pod/one", {"pod/one/cpu.max": "150000 100000", "pod/cpu.max": "max 100000"}, 2),
        ("0::/pod/one", {"pod/one/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/", {}, None),
        (
            "4:cpu,cpuacct:/docker/ab",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("5:cpuset:/a", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_quota_of_a_container_is_read(
    tmp_path: Path, groups: str, files: dict[str, str], cores: int | None
) -> None:
    assert threads.quota(tmp_path) is None, "no control groups"
    contents = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert threads.quota(tmp_path) == cores


def test_a_container_has_no_more_threads_than_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, quota=2)
    assert threads.cores() == 2
    assert machine.after(0.0, seconds=0.0) == 2, "before the first look"
    assert [machine.after(n) for n in (1.5, 3.0, 3.0)] == [2, 1, 1], "of four cores, others leave two or one"
    assert [machine.after(0.0) for _ in range(9)] == [2] * 9


def test_work_that_gives_way_costs_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.after(2.0, waited=0.1) == 4, "as beside work of low priority"
    assert machine.after(2.0, waited=1.0) == 2, "it is in the way after all"
    assert [machine.after(2.0, waited=0.0) for _ in range(9)] == [2] * 7 + [4, 4], "seen only if it is tried"
    assert machine.after(2.0, waited=1.0) == 2
    assert [machine.after(2.0) for _ in range(17)] == [2] * 15 + [4, 2], "and later if it was in vain"
    machine.waited = math.nan  # this system does not tell
    assert machine.after(0.0) == 4 and machine.after(2.0) == 2


def test_the_first_change_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(monkeypatch)
    assert [machine.after(n) for n in (2.0, 0.0, 2.0)] == [2, 4, 2]
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "others use 2.0 of 4 cores" in said and "2 of 4 threads" in said and "OMP_NUM_THREADS=4" in said


def test_a_number_of_ones_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, number=3)
    assert machine.after(4.0) == 3, "three is not PyTorch's default here"
    machine = Machine(monkeypatch)
    assert machine.after(4.0) == 1
    machine.number = 2  # torch.set_num_threads(2)
    assert machine.after(4.0) == 2 and machine.after(0.0) == 2
    machine = Machine(monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert machine.after(4.0) == 4 and machine.threads.busy


def test_a_thread_gets_its_number_back(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.after(4.0) == 1
    machine.threads.restore()
    assert machine.number == 4 and machine.threads.pending()
    machine.threads.adapt()
    assert machine.number == 1 and not machine.threads.pending()
    machine.threads.keep()
    machine.threads.restore()
    assert machine.number == 1 and machine.after(0.0) == 1, "what is compared has one number throughout"
    machine = Machine(monkeypatch)
    machine.threads.keep(2)
    assert machine.number == 2 and machine.after(0.0) == 2, "that of the run which is resumed"


@pytest.mark.parametrize("same", [True, False])
def test_within_a_text_the_number_changes_only_if_no_logit_does(
    same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    monkeypatch.setattr(prefill, "THREADS", machine.threads)
    monkeypatch.setattr(steady, "_same", lambda rows, numbers: same)
    plain, numbers = method("none", []), []
    loop = Loop(HFTarget(model("llama")), {}, plain.policy, plain.recorder)
    for _ in loop.run([[1, 2, 3], [1, 2, 4]], Sampling(max_new_tokens=3)):
        numbers.append(machine.number)
        machine.others, machine.now = 4.0, machine.now + 1.0
    assert numbers == [4, *[1 if same else 4] * 2, 1, 1, 1]


def test_logits_that_depend_on_the_number_of_threads_are_noticed() -> None:
    """As those of MKL, which splits a sum among threads where that pays on a machine."""
    made = model("llama")
    rows = HFTarget(made).runner
    head = made.lm_head
    plain = head.forward
    head.forward = lambda x: plain(x).sign()
    assert steady.Steady().holds(rows, (1, 2))
    head.forward = lambda x: plain(x).sign() * (1.0 + 1e-6 * torch.get_num_threads())
    assert not steady.Steady().holds(rows, (1, 2))


def test_llamacpp_gets_another_number_between_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, told = Machine(monkeypatch), list[tuple[int, ...]]()
    monkeypatch.setattr(sequences, "THREADS", machine.threads)
    rows = sequences.Sequences.__new__(sequences.Sequences)
    rows.threads, rows.adapts, rows.context = 4, True, cast("Context", SimpleNamespace(handle=7))
    rows.api = SimpleNamespace(llama_set_n_threads=lambda *numbers: told.append(numbers))
    rows.free, rows.cached_lengths, rows.pass_starts, rows.number = [1, 0], {}, {}, {}
    rows.open(0)
    machine.others, machine.now = 4.0, machine.now + 1.0
    rows.open(1)
    assert rows.threads == 4 and not told, "a text under way could change"
    rows.cached_lengths.clear()
    rows.free = [1]
    rows.open(2)
    assert rows.threads == 1 and told == [(7, 1, 1)]
