"""How a model's passes are run: eager, compiled, as CUDA graphs, exact; as `compile` and `exact` ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from ....errors import UserError
from ..runner import ModelRunner
from .capturer import Capturer, Choice
from .device_capture import DeviceCapture, call
from .exact import ExactCompiler
from .inductor_cpu import Compiler

MODES = ("auto", "kept", "off", "on")


def check_mode(asked: str) -> str:
    """Return the requested mode; "auto" and "kept" give way to the environment's DRAFTWISE_COMPILE.

    Raises:
        UserError: it is none of `MODES`.
    """
    mode = os.environ.get("DRAFTWISE_COMPILE", asked) if asked in ("auto", "kept") else asked
    if mode not in MODES:
        raise UserError(f"compile={mode!r}: choose from {', '.join(MODES)}")
    return mode


def compile_runner(part: Any, asked: str, *, exact: bool = False) -> None:
    """Compile the passes of a target or drafter with a runner of its own, if that was not done before.

    "off" never; "kept" if a graph is on disk; "auto" then too, or else in the background once eager passes
    have taken `PATIENCE` seconds; "on" now, with a warning if that is not possible. On a GPU passes become
    CUDA graphs, but for "off". In `exact` passes a token's logits depend on its text alone, bit for bit
    (`exact.py`); those of a graph that is on disk do so if they agree.

    Raises:
        UserError: another mode, or exact passes of a model that has none.
    """
    mode, runner = check_mode(asked), getattr(part, "runner", None)
    if not isinstance(runner, ModelRunner) or runner.compiler is not None:
        if exact and not getattr(runner, "is_exact", False):
            raise UserError(f"exact=True: {type(part).__name__} has no exact passes; leave exact out")
        return
    is_captured = runner.device.type == "cuda" and mode != "off"
    if exact:
        runner.is_exact = True  # a graph that is made is one of kernels that agree
        if is_captured:
            make = partial(DeviceCapture, runner.device)
            kernels = Choice(runner, make, mode) if mode == "on" else None
            runner.compiler = ExactCompiler(runner, make, kernels=kernels)
        else:
            compiler = None if mode == "off" else Compiler(runner, "on" if mode == "on" else "kept")
            runner.compiler = ExactCompiler(runner, lambda: call, compiler)
    elif is_captured:
        runner.compiler = Capturer(runner, mode)
    elif mode != "off":
        runner.compiler = Compiler(runner, mode)


def describe_passes(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return in one line each, by name, how every target or drafter that runs a model runs its passes."""
    compilers = {
        name: getattr(getattr(part, "runner", None), "compiler", None) for name, part in parts.items()
    }
    return {name: str(one.state) for name, one in compilers.items() if one is not None}
