"""The steps of a training: each depends only on the seed, its number and the weights before it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from math import ceil, cos, isfinite, pi
from operator import mul
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import UserError
from . import checkpoints
from .budget import ANSWERS, STEPS, Budget
from .measure import LENGTH
from .numerics import in_half, on_cpu
from .settings import Training
from .texts import Answer, Tell


class Task(Protocol):
    """One kind of training: a module, examples, their loss, and what to measure."""

    @property
    def model(self) -> nn.Module:
        """The module to train, in float32."""
        ...

    @property
    def answers(self) -> Sequence[Answer]:
        """The training examples."""
        ...

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """The mean loss over the tokens of some examples."""
        ...

    def measure(self) -> dict[str, float]:
        """Quality on held-out data, by name: a point of the acceptance curve."""
        ...


def take(
    task: Task, run: Training, folder: Path, tell: Tell, budget: Budget | None = None
) -> list[dict[str, Any]]:
    """Run all steps, starting from the latest checkpoint; returns the log, one row per point of the curves.

    With a limited `budget`, steps are taken until its time is over, and the learning rate follows the time.

    Raises:
        UserError: the loss is NaN or infinite, or a checkpoint cannot be used.
    """
    accelerator = accelerate(run)
    parameters = list(checkpoints.trained(task.model).values())
    fused = parameters[0].is_cuda
    optimizer = torch.optim.AdamW(parameters, lr=run.rate, weight_decay=run.decay, fused=fused)
    done, log = checkpoints.restore(folder, task.model, optimizer)
    optimizer = accelerator.prepare(optimizer)
    losses: list[float] = []
    if done == 0:
        log.append({"step": 0, **measured(task, accelerator)})
    plan = Plan(run.steps, budget)
    while not plan.is_over(done):
        for group in optimizer.param_groups:
            group["lr"] = run.rate * schedule(plan.place(done), run.steps, run.warmup)
        losses.append(_step(task, run, done, accelerator, optimizer, parameters))
        done += 1
        last = plan.is_over(done)
        if done % run.log_every == 0 or last:
            log.append({"step": done, "loss": sum(losses) / len(losses)})
            losses = []
        if done % run.measure_every == 0 or last:
            log.append({"step": done, **measured(task, accelerator)})
        if done % run.checkpoint_every == 0 or last:
            losses = []  # a run resumed from here has not seen them
            checkpoints.save(folder, done, task.model, optimizer.optimizer, log)
            plan.save()
        tell(f"Training{progress(log)}", done, plan.total(done), **plan.left)
        if last:
            break
    return log


class Plan:
    """How long steps are taken: a number of them, or until a share of a training's time is over."""

    def __init__(self, steps: int, budget: Budget | None) -> None:
        self.steps, self.budget = steps, budget if budget is not None and budget.is_limited else None
        self.begin = min(self.budget.used, ANSWERS) if self.budget else 0.0

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
        return (
            self.steps
            if not self.budget
            else max(done, round(self.steps * done / max(self.place(done), 1e-9)))
        )

    @property
    def left(self) -> dict[str, float]:
        """The seconds left, as `Tell` takes them; none where they follow from the pace alone."""
        return {"left": self.budget.left(STEPS)} if self.budget else {}

    def save(self) -> None:
        """Keep the time spent so far."""
        if self.budget:
            self.budget.save()


def progress(log: Sequence[dict[str, Any]]) -> str:
    """Return the latest loss and what to expect of a draft: how many of its tokens are accepted."""
    loss = next((row["loss"] for row in reversed(log) if "loss" in row), None)
    point: dict[str, float] = next(
        (row for row in reversed(log) if any(name.startswith("agreement") for name in row)), {}
    )
    rates = [value for name, value in point.items() if name.startswith("agreement")]
    if "agreement" in point:  # of one model at every depth
        rates = rates * LENGTH
    parts = [] if loss is None else [f"loss {loss:.3f}"]
    if rates:
        parts.append(f"{sum(accumulate(rates, mul)):.2f} of {len(rates)} tokens accepted on held-out prompts")
    return "".join(f", {part}" for part in parts)


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
def measured(task: Task, accelerator: Any) -> dict[str, float]:
    """The task's measurements, with the model in evaluation mode."""
    task.model.eval()
    with accelerator.autocast():
        return task.measure()


def examples(size: int, batch: int, seed: int, step: int) -> list[int]:
    """The examples of a step: each once per epoch, in a new order for each epoch."""
    batch = min(batch, size)
    a_round = ceil(size / batch)
    turn, place = divmod(step, a_round)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(_number(seed, "order", turn)))
    found: list[int] = order[place * batch : (place + 1) * batch].tolist()
    return found


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
