"""Decides when a model's passes are compiled, and when the compiled ones are used."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping
from logging import getLogger
from math import inf, isnan
from pathlib import Path
from typing import Any

import torch

from ...errors import DraftwiseWarning, UserError
from ..runner import Rows
from ..stages import announce
from .blueprint import Blueprint, Unfit, blueprint, check_class
from .graph import Graph
from .store import find, make
from .trial import try_out

LOG = getLogger(__name__)
MODES = ("auto", "kept", "off", "on")
PATIENCE = 20.0  # seconds inside eager passes before a graph is compiled: shorter runs would not gain


def checked(asked: str) -> str:
    """The requested mode; "auto" and "kept" give way to the environment's DRAFTWISE_COMPILE.

    Raises:
        UserError: it is none of `MODES`.
    """
    mode = os.environ.get("DRAFTWISE_COMPILE", asked) if asked in ("auto", "kept") else asked
    if mode not in MODES:
        raise UserError(f"compile={mode!r}: choose from {', '.join(MODES)}")
    return mode


def compile_rows(rows: Rows, asked: str) -> None:
    """Compile the passes of these rows as requested.

    "off" never; "kept" if a graph is on disk; "auto" then too, or else in the background once eager passes
    have taken `PATIENCE` seconds; "on" now, with a warning if that is not possible.

    Raises:
        UserError: another mode.
    """
    mode = checked(asked)
    if mode != "off":
        rows.passes = Passes(rows, mode)


def compile_part(part: Any, asked: str) -> None:
    """`compile_rows` for a drafter that runs a model in rows of its own, if it was not done before."""
    if isinstance(rows := getattr(part, "rows", None), Rows) and rows.passes is None:
        compile_rows(rows, asked)


def states(parts: Mapping[str, Any]) -> dict[str, str]:
    """In one line each, how the passes of every target or drafter that runs a model are run, by name."""
    found = {}
    for name, part in parts.items():
        passes = getattr(getattr(part, "rows", None), "passes", None)
        if isinstance(passes, Passes):
            found[name] = passes.state
    return found


class Passes:
    """How the passes of one model are run: eager at first, compiled once that is ready, right and faster.

    `state` says it in one line. `edition` counts the changes, after which a pass costs something else.
    """

    def __init__(self, rows: Rows, mode: str) -> None:
        self.rows, self.aloud = rows, mode == "on"
        self.state, self.edition = "eager", 0
        self.patience = PATIENCE if mode == "auto" else inf
        self.plan: Blueprint | None = None  # None when nothing is left to compile
        self._found: Path | Unfit | None = None  # what the background has compiled
        try:
            self.plan = _plan(rows)
            path = find(self.plan)
            if path is None and self.aloud:
                announce(f"compiling the passes of {self.name}: this can take minutes")
                path = make(self.plan)
            if path is not None:
                self._adopt(path)
        except Unfit as reason:
            self._refuse(reason)

    @property
    def name(self) -> str:
        """The model's name, or its class."""
        return str(getattr(self.rows.model, "name_or_path", "") or type(self.rows.model).__name__)

    def poll(self) -> None:
        """Before a pass: after enough eager ones compile in the background, then use what was compiled."""
        if self.plan is None:
            return
        if self._found is not None:
            try:
                if isinstance(self._found, Unfit):
                    raise self._found
                self._adopt(self._found)
            except Unfit as reason:
                self._refuse(reason)
        elif self.rows.seconds > self.patience:
            self.state, self.patience = "eager; compiling", inf
            threading.Thread(target=self._compile, args=(self.plan,), daemon=True).start()

    def _compile(self, plan: Blueprint) -> None:
        try:
            self._found = make(plan, behind=True)
        except Unfit as reason:
            self._found = reason

    def _adopt(self, path: Path) -> None:
        """Use a graph from now on.

        Raises:
            Unfit: it cannot be loaded, its logits are not the model's, or it is slower.
        """
        assert self.plan is not None
        try:
            graph = Graph(path, self.plan, self.rows.model)
            ratio = try_out(self.rows, graph)
        except (RuntimeError, AttributeError, TypeError, OSError) as error:  # another build of PyTorch
            raise Unfit(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:160]}") from error
        self.rows.graph, self.plan, self.edition = graph, None, self.edition + 1
        times = "not timed yet against" if isnan(ratio) else f"{ratio:.2f} times the time of"
        self.state = f"compiled: {times} eager passes"
        LOG.info("%s: %s", self.name, self.state)

    def _refuse(self, reason: Unfit) -> None:
        """Stay eager, and say why: aloud if compiling was asked for."""
        self.plan, self.state = None, f"eager: {reason}"
        LOG.info("%s: %s", self.name, self.state)
        if self.aloud:
            warnings.warn(f"{self.name} is not compiled ({reason})", DraftwiseWarning, stacklevel=2)


def _plan(rows: Rows) -> Blueprint:
    """The blueprint of the rows' model, after a pass of two tokens has shown what its cache holds.

    Raises:
        Unfit: the model cannot be compiled.
    """
    check_class(rows.model)
    if rows.device.type != "cpu":
        raise Unfit(f"passes are compiled on a CPU, not on {rows.device.type}")
    if rows.stateful:
        raise Unfit("it keeps a state that cannot rewind")
    if not rows.guided:
        raise Unfit("it makes its own masks")
    if rows.rope.borders:
        raise Unfit("its rotary frequencies depend on the text's length")
    scratch = type(rows)(rows.model, traits=rows.traits)
    scratch.open(0)
    with torch.inference_mode():
        scratch.feed(0, [[0, 0]], 1)
    views: Any = rows.masks.views
    kinds = sorted(views) if isinstance(views, dict) else []
    return blueprint(rows.model, scratch.cache, kinds=kinds, keeps=rows.keeps)
