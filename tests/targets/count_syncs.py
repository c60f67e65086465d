"""How often a round waits for the stub device, by decoding, drafter and batch."""

from __future__ import annotations

from typing import Any

from draftwise.core.request_round import unfailed
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.models.runner import PassInput
from draftwise.models.runner.executors.cuda_graphs import CudaGraphs
from draftwise.targets.hf import HFTarget
from tests.core.turns import loop_with
from tests.recording import call
from tests.stub_device import StubDevice, move
from tests.tiny import VOCAB, model

ROUNDS = 2
POLICIES = {
    "none": "none",
    "ngram": "static-4?drafter=ngram",
    "lm": "static-4?drafter=lm",
    "graphs": "static-4?drafter=lm",
}


def eager(seed: int) -> Any:
    """A tiny model on the stub device."""
    made = model("llama", seed=seed, layers=1)
    made.config._attn_implementation = "eager"  # the fused kernels are chosen by the name of the device
    return move(made)


def watch_launches(target: Any, device: StubDevice) -> None:
    """Count the waits between a launch and its end apart: the host has other work to do then."""
    launch = target.launch

    def watched(batch: Any) -> Any:
        before = device.seen.copy()
        read = launch(batch)
        for (kind, at), n in (device.seen - before).items():
            device.seen[f"launch {kind}", at] += n
        return read

    target.launch = watched


def counted(name: str, sampling: Sampling, batch: int) -> dict[str, float]:
    """Waits a round, by kind and place, after the round of the prompt; and the texts."""
    with StubDevice() as device:
        target = HFTarget(eager(0), probe=False)
        team: dict[str, Any] = {"lm": LMDrafter(eager(1), VOCAB, probe=False), "ngram": NgramDrafter()}
        if name == "graphs":
            for part in (target, team["lm"]):
                part.runner.use(CudaGraphs(part.runner, capture=call, buffers=(batch, 64)))
        watch_launches(target, device)
        loop = loop_with(target, team, POLICIES[name])
        assert loop.launcher is not None and loop.barrier.is_late
        for i in range(batch):
            loop.add([3, 4, 5, 6, 3, 4, 5 + i, 6, 3, 4], sampling)
        unfailed(loop.step())
        device.seen.clear()
        for _ in range(ROUNDS):
            rounds = unfailed(loop.step())
            assert not any(round.fault for round in rounds), [round.fault for round in rounds]
            assert len(rounds) == batch
    return {f"{kind} {at}": n / ROUNDS for (kind, at), n in device.seen.items()}


def moved_rows() -> dict[str, float]:
    """Waits where two rows change places, and where the accepted nodes of a tree get their slots."""
    with StubDevice() as device:
        runner = HFTarget(eager(0), probe=False).runner
        for key in (0, 1):
            runner.open(key)
        runner.forward(PassInput(0, [[3, 4, 5], [6, 7]], 1))
        device.seen.clear()
        runner.move_to_front([1])
        runner.cache.move([(0, 1, 0)], runner.device)
    return {f"{kind} {at}": float(n) for (kind, at), n in device.seen.items()}


def all_counts() -> dict[str, dict[str, float]]:
    """Waits a round, by kind and place, of every decoding, drafter and size of batch."""
    found = {}
    for temperature in (0.0, 0.9):
        sampling = Sampling(max_new_tokens=60, temperature=temperature, seed=1)
        for batch in (1, 4):
            for name in POLICIES:
                how = "sampled" if temperature else "greedy"
                found[f"{how} {name} {batch}"] = counted(name, sampling, batch)
    penalised = Sampling(max_new_tokens=60, repetition_penalty=1.2)
    return found | {"rows": moved_rows(), "penalised": counted("none", penalised, 1)}
