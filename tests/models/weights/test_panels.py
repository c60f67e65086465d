"""The kernel that this machine's compiler makes: what it computes, and what happens without it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from draftwise.core.loop import Loop
from draftwise.models.weights import choice, panels
from draftwise.models.weights.layouts import PANELS, PackedLinear
from draftwise.models.weights.packed import pack_layers
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from tests.core.turns import written
from tests.targets.test_hf import Oracle, prompts
from tests.tiny import model, own_text

made = pytest.mark.skipif(panels.kernel() is None, reason="no C++ compiler here")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has not looked for a kernel yet, and an empty cache; returns its folder of libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(panels, "kernel", panels.kernel.__wrapped__)
    return tmp_path / "draftwise" / "kernels"


def library(folder: Path) -> Path:
    (found,) = folder.glob("panels-*.so")
    return found


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return panels.linear(x, panels.pack(weight), weight, bias)


@made
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 48, 65, 200])
@pytest.mark.parametrize("inputs", [1, 7, 64, 1100])
def test_products_are_those_of_pytorch_for_every_number_of_tokens(outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    for tokens in (0, *range(1, 15), 40):
        x = torch.randn(tokens, inputs)
        for added in (bias, None):
            wanted = nn.functional.linear(
                x.double(), weight.double(), None if added is None else bias.double()
            )
            assert torch.allclose(product(x, weight, added).double(), wanted, rtol=1e-5, atol=2e-4)


@made
def test_a_token_has_the_same_result_in_every_pass_and_with_every_number_of_threads() -> None:
    """Bit for bit: a draft is verified with the sums of plain decoding."""
    torch.manual_seed(0)
    x, weight, bias, threads = (
        torch.randn(40, 1200),
        torch.randn(130, 1200),
        torch.randn(130),
        torch.get_num_threads(),
    )
    alone = torch.cat([product(row[None], weight, bias) for row in x])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for tokens in range(1, 41):
                assert torch.equal(product(x[:tokens], weight, bias), alone[:tokens])
    finally:
        torch.set_num_threads(threads)


@made
def test_inputs_may_be_views_and_share_the_layer_between_threads() -> None:
    torch.manual_seed(0)
    layer = PackedLinear(nn.Linear(32, 50), PANELS)
    x = torch.randn(3, 32, 5).transpose(1, 2)
    wanted = layer(x.contiguous())
    assert torch.equal(layer(x), wanted)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, wanted) for found in pool.map(lambda _: layer(x), range(200)))


@made
def test_numbers_that_are_none_stay_where_they_are() -> None:
    """A text with a NaN in its states spoils no other."""
    weight, x = torch.randn(20, 8), torch.randn(3, 8)
    x[1, 3] = float("nan")
    found = product(x, weight)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], product(x[[0, 2]], weight))


@made
def test_greedy_text_is_the_models_own() -> None:
    """With a good drafter, and one that is never right; at batch 1 and 3."""
    target = model("llama", dtype=torch.float32)
    own = [own_text(target, p, 40) for p in prompts()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "SMALLEST", 0)
        used = pack_layers(target, lambda layers, names: PANELS if PANELS in names else names[0])
    assert used[PANELS]
    truth = {tuple(p): text for p, text in zip(prompts(), own, strict=True)}
    for batch in (1, 3):
        for spoil in (0.1, 1.0):
            team: dict[str, Any] = {"oracle": Oracle(truth, spoil)}
            chosen = method("static-6", list(team))
            loop = Loop(HFTarget(target), team, chosen.policy, chosen.recorder)
            assert written(loop, prompts(), 40, batch) == own


@made
def test_the_library_is_compiled_once_and_again_if_it_is_damaged(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert panels.kernel() is not None
    path = library(fresh)
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", None)
        assert panels._found() == path, "nothing is compiled again"
    path.write_bytes(whole[:-100])
    assert panels._found() == path and path.read_bytes() == whole
    assert sorted(p.suffix for p in fresh.iterdir()) == [".json", ".so"], "nothing is left over"


@made
def test_a_library_that_others_may_write_to_is_not_loaded(fresh: Path, caplog: Any) -> None:
    panels._found()
    library(fresh).chmod(0o666)
    with caplog.at_level(logging.INFO):
        assert panels.kernel() is None
    assert "may be written by others: delete it" in caplog.text


@pytest.mark.parametrize("harm", ["no compiler", "a compiler that fails", "no space", "a hung compiler"])
def test_without_a_kernel_there_is_no_such_layout(
    fresh: Path, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    said = {"no compiler": "there is no C++ compiler", "no space": "No space", "a hung compiler": "timed out"}

    def run(command: list[str], **more: Any) -> Any:
        if harm == "a hung compiler":
            raise subprocess.TimeoutExpired(command, panels.PATIENCE)
        return subprocess.CompletedProcess(command, 1, "", "fatal error: disk of sand\nmore")

    def full(*args: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: None if harm == "no compiler" else f"/{name}")
    if harm == "no space":
        monkeypatch.setattr(Path, "mkdir", full)
    with caplog.at_level(logging.INFO):
        assert PANELS not in choice.possible(torch.zeros(1))
    assert said.get(harm, "/g++: fatal error: disk of sand") in caplog.text
    assert not fresh.exists() or not list(fresh.iterdir())


@made
def test_a_kernel_that_computes_something_else_is_not_used(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    text = panels.SOURCE.read_text()
    for old, new in (("+= input *", "-= input *"), ("found[k] += p.bias", "found[k] -= p.bias")):
        assert old in text
        wrong = fresh.parent.parent / f"{len(old)}.cpp"
        wrong.write_text(text.replace(old, new))
        monkeypatch.setattr(panels, "SOURCE", wrong)
        with caplog.at_level(logging.INFO):
            assert panels.kernel() is None
        assert "it computes something else than PyTorch" in caplog.text
        caplog.clear()


@made
def test_two_processes_may_compile_it_at_once(fresh: Path) -> None:
    code = "from draftwise.models.weights import panels; print(panels.kernel() is not None)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ.copy()
        )
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["True", "True"]
    assert sorted(p.suffix for p in fresh.iterdir()) == [".json", ".so"]
