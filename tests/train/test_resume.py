"""A training that was stopped ends with the very weights of one that was not."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from draftwise.errors import UserError
from draftwise.train import classifier, drafter, eagle, medusa, steps
from draftwise.train.folder import Folder
from draftwise.train.settings import ClassifierRun, DrafterRun, EagleRun, MedusaRun, as_plain
from tests.effort import some, thorough
from tests.train.world import Options, silent

ROOT = Path(__file__).parents[2]
VERBS: dict[str, Any] = {
    "drafter": (drafter.train, DrafterRun, {}),
    "disco": (classifier.train, ClassifierRun, {}),
    "specdecpp": (classifier.train, ClassifierRun, {"kind": "specdecpp", "labels": "chance"}),
    "eagle": (eagle.train, EagleRun, {}),
    "medusa": (medusa.train, MedusaRun, {"heads": 2, "pieces": 2}),
}


def check_same(folder: Path, steps: int, *more: str) -> None:
    """See that `whole` and `parts` end with the same files, to the last bit, and the same log."""
    a, b = folder / "whole", folder / "parts"
    one, other = (load_file(path / "model.safetensors") for path in (a, b))  # metadata: in another order
    assert one.keys() == other.keys()
    assert all(torch.equal(t.view(torch.uint8), other[k].view(torch.uint8)) for k, t in one.items())
    last = f"training/checkpoints/step-{steps:06}"
    for name in (f"{last}/weights.safetensors", f"{last}/optimizer.safetensors", *more):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    logs = [json.loads((path / "results.json").read_text())["log"] for path in (a, b)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("name", some(VERBS, 2))
def test_every_verb_goes_on_exactly(world: Path, tmp_path: Path, options: Options, name: str) -> None:
    train, kind, more = VERBS[name]
    if kind is DrafterRun:
        more = more | {"start": str(world / "drafter")}
    if kind is ClassifierRun:
        more = more | {"drafter": str(world / "drafter")}
    run = kind(**options(steps=13, checkpoint_every=4, log_every=3, measure_every=5, **more))
    train(run, tmp_path / "whole", silent)

    for stop in (6, 11):

        def stopped(what: str, done: int, total: int, stop: int = stop) -> None:
            if what.startswith("Training") and done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(run, tmp_path / "parts", stopped)
    train(run, tmp_path / "parts", silent)
    check_same(tmp_path, 13)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here and in processes that are started, however many this one began with."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@thorough
def test_killed_at_five_random_moments(
    world: Path, tmp_path: Path, options: Options, one_thread: None
) -> None:
    """While it writes answers, between steps, while it saves: wherever SIGKILL strikes."""
    changes = {"start": str(world / "drafter"), "answers": "", "together": 1, "steps": 16}
    given = options(**changes, checkpoint_every=3, log_every=3, measure_every=8)
    drafter.train(DrafterRun(**given), tmp_path / "whole", silent)
    config, work, rng = tmp_path / "run.yaml", tmp_path / "parts" / "training", Random(8)
    config.write_text(yaml.safe_dump(as_plain(DrafterRun(**given))))
    command = [sys.executable, "-m", "draftwise", "train", "drafter", "--config", str(config)]
    command += ["--out", str(tmp_path / "parts")]

    def progress() -> list[Any]:
        answered = [file.stat().st_size for file in work.glob("answers.jsonl")]
        return answered + sorted(file.name for file in work.glob("checkpoints/step-*"))

    for _ in range(5):
        before, life = progress(), subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while life.poll() is None and progress() == before:
            time.sleep(0.001)
        time.sleep(0.5 * rng.random())
        life.kill()
        life.wait()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    check_same(tmp_path, 16, "training/answers.jsonl")
    assert not list((tmp_path / "parts").rglob("*.part"))


def test_another_seed_gives_other_weights(world: Path, tmp_path: Path, options: Options) -> None:
    """Else the tests above could not fail."""
    for seed in (0, 1):
        run = DrafterRun(**options(start=str(world / "drafter"), steps=3, seed=seed, answers=""))
        drafter.train(run, tmp_path / str(seed), silent)
    a, b = (load_file(tmp_path / str(seed) / "model.safetensors") for seed in (0, 1))
    assert any(not torch.equal(a[name], b[name]) for name in a)


def test_what_is_made_in_the_current_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder(Path()).name == tmp_path.name


def test_half_a_delivery_is_replaced_by_the_whole(tmp_path: Path, options: Options) -> None:
    """With folders in it, such as those of a tokenizer with several chat templates."""
    folder = Folder(tmp_path / "made")
    folder.claim("drafter", DrafterRun(**options()))

    def write(part: Path) -> None:
        (part / "templates").mkdir()
        (part / "templates" / "rag.jinja").write_text("whole")

    (folder.out / "templates").mkdir()
    (folder.out / "templates" / "rag.jinja").write_text("ha")
    folder.deliver(write, {})
    assert (folder.out / "templates" / "rag.jinja").read_text() == "whole"
    assert (folder.out / "templates").stat().st_mode & 0o111, "it can be entered"


@pytest.mark.parametrize("error", [SafetensorError, OSError])
@pytest.mark.parametrize("place", ["checkpoint", "delivery"])
def test_after_a_full_disk_the_same_command_goes_on(
    world: Path,
    tmp_path: Path,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: type[Exception],
) -> None:
    reason = "No space left on device"

    def full(*_: object, **__: object) -> None:
        raise (
            OSError(errno.ENOSPC, reason)
            if error is OSError
            else error(f"while serializing: I/O error: {reason}")
        )

    run, out = DrafterRun(**options(steps=3, start=str(world / "drafter"))), tmp_path / "made"
    with monkeypatch.context() as patched:
        if place == "checkpoint":
            patched.setattr(steps, "save_file", full)
        else:
            patched.setattr(PreTrainedModel, "save_pretrained", full)
        with pytest.raises(UserError, match=f"made: {reason}; make room, and the same command continues$"):
            drafter.train(run, out, silent)
    assert not list(out.rglob("*.part")), "half of a file takes no room"
    assert drafter.train(run, out, silent)["steps"] == 3


# -- checkpoints ---------------------------------------------------------------------------------------


def trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_the_latest_whole_checkpoint_counts(tmp_path: Path) -> None:
    for done in (2, 5):
        steps.save_checkpoint(tmp_path, done, *trained(done), log=[{"step": done}])
    assert [f.name for f in tmp_path.iterdir()] == ["step-000005"]
    (tmp_path / "step-000009.part").mkdir()
    model, optimizer = trained(0)
    assert steps.restore_checkpoint(tmp_path, model, optimizer) == (5, [{"step": 5}])
    assert [f.name for f in tmp_path.iterdir()] == ["step-000005"]  # a training may have no more to save
    wanted, theirs = trained(5)
    assert torch.equal(model.weight, wanted.weight)  # type: ignore[arg-type]
    for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
        assert all(torch.equal(optimizer.state[p][k], v) for k, v in theirs.state[q].items())


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for done in (999_999, 1_000_000):
        steps.save_checkpoint(tmp_path, done, *trained(1), log=[])
    assert [f.name for f in tmp_path.iterdir()] == ["step-1000000"]
    assert steps.restore_checkpoint(tmp_path, *trained(0)) == (1_000_000, [])


@pytest.mark.parametrize("harm", ["cut", "other model", "no json"])
def test_a_damaged_checkpoint_is_refused_with_the_remedy(tmp_path: Path, harm: str) -> None:
    steps.save_checkpoint(tmp_path, 2, *trained(2), log=[])
    folder = tmp_path / "step-000002"
    model: torch.nn.Module = torch.nn.Linear(3, 2)
    if harm == "cut":
        (folder / "weights.safetensors").write_bytes(b"12345")
    if harm == "no json":
        (folder / "state.json").write_text("{")
    if harm == "other model":
        model = torch.nn.Sequential(model)
    with pytest.raises(UserError, match="remove that folder to start again"):
        steps.restore_checkpoint(tmp_path, model, torch.optim.AdamW(model.parameters()))
