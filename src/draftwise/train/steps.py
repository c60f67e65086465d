"""The steps of a training: each depends only on the seed, its number and the weights before it.

Checkpoints are folders of Safetensors and JSON, written atomically:

    checkpoints/step-000100/weights.safetensors     the trained parameters, by name
                            optimizer.safetensors   NAME.KEY for every tensor that AdamW keeps of a parameter
                            state.json              steps done and the log so far

This is enough to resume exactly: the learning rate, the order of the data and every random number follow from
the seed and the number of the step. Precision and threads, which affect the last bits of every step, are
chosen when a training begins and stored in its folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from math import ceil, cos, isfinite, pi
from operator import mul
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import UserError
from ..writing import write_text
from .settings import Training
from .texts import STEPS, Answer, Budget, Tell

LENGTH = 5  # tokens per draft where drafts are measured, as in MetaSD
WHOLE = re.compile(r"step-(\d{6,})")

T = TypeVar("T", bound=Training)
Log = list[dict[str, Any]]


class Task(Protocol):
    """One kind of training: a module in float32, examples, their mean loss over tokens, and its quality on
    held-out data by name, which is a point of the acceptance curve; `progress` is the share of the training
    that is over."""

    progress: float

    @property
    def model(self) -> nn.Module: ...

    @property
    def answers(self) -> Sequence[Answer]: ...

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor: ...

    def measure(self) -> dict[str, float]: ...


def is_fast_in_half(device: str) -> bool:
    """Return whether this machine's `cpu` or `cuda` is faster in bfloat16: a CPU is with AMX."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    query: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)  # recent PyTorch
    return bool(query().get("amx_bf16"))


def in_half(run: Training) -> bool:
    """Return whether matrix products are in bfloat16: if requested, or if that is faster on the device."""
    if run.precision != "auto":
        return run.precision == "bfloat16"
    return is_fast_in_half("cpu" if on_cpu(run) else "cuda")


def on_cpu(run: Training) -> bool:
    """Return whether training runs without a GPU."""
    return run.device == "cpu" or not torch.cuda.is_available()


@contextmanager
def settled(run: T, file: Path) -> Iterator[T]:
    """The run with its precision chosen, and its initial number of threads set; both are stored in `file`.

    Raises:
        UserError: the file is damaged.
    """
    if not file.exists():
        chosen = {"precision": "bfloat16" if in_half(run) else "float32"}
        write_text(file, json.dumps(chosen | {"threads": torch.get_num_threads()}))
    try:
        stored = json.loads(file.read_text())
        run, threads = replace(run, precision=stored["precision"]), int(stored["threads"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{file} is damaged, and says no longer how this training began: give a new folder as --out"
        ) from error
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield run
    finally:
        torch.set_num_threads(before)


@contextmanager
def removed_on_error(part: Path) -> Iterator[None]:
    """Remove a folder if writing to it fails: where the disk is full, its room is needed."""
    try:
        yield
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def save_checkpoint(folder: Path, step: int, model: nn.Module, optimizer: Any, log: Log) -> None:
    """Write the checkpoint after `step` steps, then delete the previous one."""
    part = folder / f"step-{step:06}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    named = trainable_parameters(model)
    moments = {
        f"{name}.{key}": x for name, p in named.items() for key, x in optimizer.state.get(p, {}).items()
    }
    with removed_on_error(part):
        for name, tensors in (("weights", named), ("optimizer", moments)):
            plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
            save_file(plain, part / f"{name}.safetensors")
        (part / "state.json").write_text(json.dumps({"step": step, "log": log}))
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    part.rename(folder / f"step-{step:06}")
    for older in _list_checkpoints(folder)[:-1]:
        older.rename(older.with_name(f"{older.name}.part"))  # half a folder must never look complete
    _remove_parts(folder)


def restore_checkpoint(folder: Path, model: nn.Module, optimizer: Any) -> tuple[int, Log]:
    """Restore the latest checkpoint; returns the steps done (0 without a checkpoint) and the log.

    Raises:
        UserError: it is damaged, or of another model.
    """
    _remove_parts(folder)  # left by a run killed while saving
    checkpoints = _list_checkpoints(folder)
    if not checkpoints:
        return 0, []
    latest = checkpoints[-1]
    try:
        state = json.loads((latest / "state.json").read_text())
        weights, moments = (load_file(latest / f"{name}.safetensors") for name in ("weights", "optimizer"))
        named = trainable_parameters(model)
        if weights.keys() != named.keys():
            raise ValueError("it holds other parameters")
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(weights[name])
        places = {name: i for i, name in enumerate(named)}
        parts: dict[int, dict[str, Tensor]] = {i: {} for i in places.values()}
        for key, value in moments.items():
            name, _, part = key.rpartition(".")
            parts[places[name]][part] = value
        optimizer.load_state_dict(optimizer.state_dict() | {"state": parts})
        return int(state["step"]), list(state["log"])
    except Exception as error:  # whatever is wrong with a damaged file, the remedy is the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot continue from {latest}: {reason}; remove that folder to start again"
        ) from error


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _list_checkpoints(folder: Path) -> list[Path]:
    whole = {int(match[1]): path for path in folder.glob("step-*") if (match := WHOLE.fullmatch(path.name))}
    return [whole[step] for step in sorted(whole)]


def _remove_parts(folder: Path) -> None:
    for part in folder.glob("*.part"):
        shutil.rmtree(part)


def take(task: Task, run: Training, folder: Path, tell: Tell, budget: Budget | None = None) -> Log:
    """Run all steps, starting from the latest checkpoint; returns the log, one row per point of the curves.

    With a limited `budget`, steps are taken until its time is over, and the learning rate follows the time.

    Raises:
        UserError: the loss is NaN or infinite, or a checkpoint cannot be used.
    """
    accelerator = accelerate(run)
    parameters = list(trainable_parameters(task.model).values())
    fused = parameters[0].is_cuda
    optimizer = torch.optim.AdamW(parameters, lr=run.rate, weight_decay=run.decay, fused=fused)
    done, log = restore_checkpoint(folder, task.model, optimizer)
    optimizer = accelerator.prepare(optimizer)
    losses: list[float] = []
    if done == 0:
        log.append({"step": 0, **_measure(task, accelerator)})
    plan = Plan(run.steps, budget)
    last = plan.is_over(done)
    while not last:
        for group in optimizer.param_groups:
            group["lr"] = run.rate * schedule(plan.place(done), run.steps, run.warmup)
        task.progress = plan.place(done) / run.steps
        losses.append(_step(task, run, done, accelerator, optimizer, parameters))
        done += 1
        last = plan.is_over(done)
        if done % run.log_every == 0 or last:
            log.append({"step": done, "loss": sum(losses) / len(losses)})
            losses = []
        if done % run.measure_every == 0 or last:
            log.append({"step": done, **_measure(task, accelerator)})
        if done % run.checkpoint_every == 0 or last:
            losses = []  # a run resumed from here has not seen them
            save_checkpoint(folder, done, task.model, optimizer.optimizer, log)
            if budget is not None:
                budget.save()
        tell(f"Training{progress(log)}", done, plan.total(done), **plan.left)
    return log


class Plan:
    """How long steps are taken: a number of them, or until a share of a training's time is over."""

    def __init__(self, steps: int, budget: Budget | None) -> None:
        self.steps, self.budget = steps, budget
        self.begin = budget.steps_begin if budget else 0.0

    def is_over(self, done: int) -> bool:
        """Return whether no further step is taken; one at least is."""
        return (self.budget.used >= STEPS and done > 0) if self.budget else done >= self.steps

    def place(self, done: int) -> float:
        """Return where the schedule of the learning rate is, as a number of steps."""
        if not self.budget:
            return done
        return self.steps * min(1.0, (self.budget.used - self.begin) / (STEPS - self.begin))

    def total(self, done: int) -> int:
        """Return how many steps there will be, by the pace so far where time decides."""
        pace = self.steps / max(self.place(done), 1e-9)
        return max(done, round(pace * done)) if self.budget else self.steps

    @property
    def left(self) -> dict[str, float]:
        """The seconds left, as `Tell` takes them; none where they follow from the pace alone."""
        return {"left": self.budget.left(STEPS)} if self.budget else {}


def progress(log: Sequence[dict[str, Any]]) -> str:
    """Return the latest loss and what to expect of a draft: how many of its tokens are accepted."""
    latest = {name: value for row in log for name, value in row.items()}
    rates = [value for name, value in latest.items() if name.startswith("agreement")]
    if "agreement" in latest:  # of one model at every depth
        rates = rates * LENGTH
    said = f", loss {latest['loss']:.3f}" if "loss" in latest else ""
    if rates:
        said += f", {sum(accumulate(rates, mul)):.2f} of {len(rates)} tokens accepted on held-out prompts"
    return said


def _step(
    task: Task, run: Training, step: int, accelerator: Any, optimizer: Any, parameters: list[nn.Parameter]
) -> float:
    task.model.train()
    rng = torch.Generator().manual_seed(_number(run.seed, "step", step))
    # Random numbers from PyTorch's own generator, such as dropout, must not depend on where a run resumed.
    devices = [] if accelerator.device.type == "cpu" else [accelerator.device]
    total = 0.0
    with torch.random.fork_rng(devices):
        torch.manual_seed(_number(run.seed, "dropout", step))
        chosen = examples(len(task.answers), run.batch, run.seed, step)
        for share, some in pieces(task.answers, chosen, run.pieces):
            with accelerator.autocast():
                loss = share * task.loss(some, rng)
            total += float(loss.detach())
            if not isfinite(total):
                raise UserError(f"the loss is {total} at step {step + 1}: lower --rate (now {run.rate:g})")
            accelerator.backward(loss)
    accelerator.clip_grad_norm_(parameters, run.clip)
    optimizer.step()
    optimizer.zero_grad()
    return total


@torch.no_grad()
def _measure(task: Task, accelerator: Any) -> dict[str, float]:
    task.model.eval()
    with accelerator.autocast():
        return task.measure()


def examples(size: int, batch: int, seed: int, step: int) -> list[int]:
    """The examples of a step: each once per epoch, in a new order for each epoch."""
    batch = min(batch, size)
    a_round = ceil(size / batch)
    turn, place = divmod(step, a_round)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(_number(seed, "order", turn)))
    chosen: list[int] = order[place * batch : (place + 1) * batch].tolist()
    return chosen


def pieces(answers: Sequence[Answer], chosen: Sequence[int], n: int) -> list[tuple[float, list[int]]]:
    """A batch in `n` parts of texts of similar length (less padding), each with its share of the tokens."""
    if n > 1:
        chosen = sorted(chosen, key=lambda i: (len(answers[i].text), i))
    size = ceil(len(chosen) / n)
    parts = [list(chosen[at : at + size]) for at in range(0, len(chosen), size)]
    tokens = [sum(len(answers[i].tokens) for i in part) for part in parts]
    return [(count / sum(tokens), part) for count, part in zip(tokens, parts, strict=True)]


def schedule(step: float, steps: int, warmup: float) -> float:
    """The learning rate as a fraction of its maximum: linear warm-up, then half a cosine."""
    rising = warmup * steps
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.5 + 0.5 * cos(pi * (step - rising) / max(steps - rising, 1))


def accelerate(run: Training) -> Any:
    """Accelerate's device and precision."""
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    AcceleratorState._reset_state(True)  # otherwise a process keeps the first training's device and precision
    accelerator = Accelerator(cpu=on_cpu(run), mixed_precision="bf16" if in_half(run) else "no")
    if accelerator.num_processes > 1:
        raise UserError("training runs in one process: start it without `accelerate launch`")
    return accelerator


def _number(seed: int, what: str, at: int) -> int:
    return int.from_bytes(sha256(f"{what} {seed} {at}".encode()).digest()[:7], "big")
