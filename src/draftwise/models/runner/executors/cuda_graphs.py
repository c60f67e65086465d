"""Runs passes as CUDA graphs: a pass of a shape is captured once, then launched as a whole.

A pass on a GPU takes as long as Python needs to launch its kernels, ten times what the kernels need; a graph
launches them all at once. Only numbers come from the host, in one copy: token ids, the lengths of the rows
and, in a tree, parents. Positions, masks and the slots that are written are computed inside. Shapes are
rounded up to classes. What the padding writes lies beyond the rows' lengths, where later passes write again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....core.passes import PassInfo
from ....errors import one_line
from ...compiled.blueprint import Unfit, probe_cache
from ...memory import is_out_of_memory
from ..cache import Plan
from ..drafts import (
    MOST_STEPS,
    DraftInput,
    DraftOutput,
    DraftShape,
    TreeInput,
    TreeLevel,
    TreeShape,
    read_levels,
    read_numbers,
    settings_of,
)
from ..passes import Executor, PassInput, PassOutput
from ..runner import ModelRunner
from .device_capture import Capture, Function, NoRoom, Replay
from .functions import Kernels, PassShape, draft_chains, draft_trees, run_pass

LOG = getLogger(__name__)
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ROWS = (1, 2, 4, 8, 16, 32)
FIRST_SLOTS = 512  # the first class of visible slots; each further one is twice as long
MOST_GRAPHS = 96  # kept at once, the latest used
LIKELY = 16  # widths up to this one are captured before the first text


Shape = PassShape | DraftShape | TreeShape


class Numbers:
    """A matrix of numbers on the device, and on the host, from where it is copied without waiting."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(rows, columns, dtype=dtype, pin_memory=on_gpu)
        self.device = torch.zeros(rows, columns, dtype=dtype, device=device)
        self.array: NDArray[Any] = self.host.numpy()
        self.copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def write(self) -> NDArray[Any]:
        """Return the host's matrix, to be filled, when its last copy is complete."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.array

    def send(self) -> None:
        self.device.copy_(self.host, non_blocking=True)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(self.device.device))


@dataclass(slots=True)
class Captured:
    """A graph and the inputs that change from one replay to the next: numbers, and tensors of the device."""

    replay: Replay
    numbers: Numbers
    tensors: Sequence[Tensor]

    def run(self, lengths: Sequence[int], settings: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay with the lengths of rows, further numbers of all rows, and tensors of the first ones."""
        array = self.numbers.write()
        array[:, 0] = 0
        array[: len(lengths), 0] = lengths
        array[:, 1:] = settings
        self.numbers.send()
        for held, new in zip(self.tensors, tensors, strict=True):
            held[: len(new)].copy_(new)
        return self.replay()


class CudaGraphs(Executor):
    """Runs the passes and drafts of one runner as graphs, which it captures again if the KV cache moves.

    `capture` makes a graph of a function (`DeviceCapture`); tests pass others. `buffers` are the rows and
    slots that the KV cache has from the start. `kernels` compute the passes in place of the model's own code.

    Raises:
        Unfit: the model's passes cannot be graphs.
    """

    kind, drafts, is_bound = "graph", True, True
    is_optional = True  # eager passes may take the place of its own

    def __init__(
        self,
        runner: ModelRunner,
        *,
        capture: Capture,
        buffers: tuple[int, int] = (1, 2048),
        kernels: Kernels | None = None,
    ) -> None:
        self.capture, self.buffers, self.kernels = capture, buffers, kernels
        self.layers = cache_layers(runner)
        self.graphs: dict[Shape, Captured] = {}
        self.version: tuple[int, ...] = ()  # of the buffers that the graphs read
        self.spans: dict[int, Tensor] = {}
        self.captures = 0
        self.is_full = False  # after a capture that found no memory
        self.too_large: set[tuple[int, int]] = set()  # rows and slots that the KV cache cannot grow to
        self.refused: dict[str, str] = {}  # kinds that could not be captured, and why

    @torch.inference_mode()
    def try_run(self, runner: ModelRunner, given: PassInput) -> PassOutput | None:
        """Run a pass of the first rows by its graph, which is captured where there is none."""
        shape = self._shape(runner, given)
        if shape is None:
            return None
        begin, before, first = perf_counter(), self.captures, shape.first
        count, width, keep = len(given.tokens), max(map(len, given.tokens)), given.logits_to_keep
        starts = runner.cached_lengths[first : first + count]
        runner.cache.schedule(
            first,
            starts,
            width,
            even=starts.count(starts[0]) == count,
            rows=len(runner.request_ids),
            slots=given.slots,
            tree=shape.has_tree,
        )
        columns = shape.width * (2 if shape.has_tree else 1) + 1

        def blank() -> list[Tensor]:
            return [runner.blank_states(shape.rows, shape.width)] if runner.reads_states else []

        captured = self._captured(runner, shape, run_pass, (), columns, torch.long, blank)
        if captured is None:
            return None
        if given.states is not None:
            captured.tensors[0].zero_()  # a NaN would spread even from what only pads
            captured.tensors[0][:count, :width].copy_(given.states)
        self._fill(captured.numbers.write(), runner, given, shape)
        captured.numbers.send()
        logits, best, *states = captured.replay()
        # Copies, since the next replay overwrites them.
        logits, best = (part[:count, width - keep : width].clone() for part in (logits, best))
        kept = {
            layer: part[:count, :width].clone() for layer, part in zip(runner.layers, states, strict=True)
        }
        for row, text in enumerate(given.tokens, first):
            runner.cached_lengths[row] += len(text)
        runner.seconds += perf_counter() - begin
        info = PassInfo(self.kind, is_timed=self.captures == before)
        return PassOutput(logits, kept, info, best)

    @torch.inference_mode()
    def try_draft(self, runner: ModelRunner, given: DraftInput) -> DraftOutput | None:
        """Draft tokens for the first rows in one replay; None if there is no graph for it."""
        count, lengths = len(given.logits), runner.cached_lengths
        returns_states = bool(runner.layers) and not runner.reads_states
        if count > ROWS[-1] or given.steps > MOST_STEPS or returns_states or runner.training:
            return None
        rows = ROWS[bisect_left(ROWS, count)]
        shape = DraftShape(
            rows,
            given.steps,
            slots_class(max(lengths[:rows]) + given.steps),
            any(one is not None for one in given.uniforms),
            any(one.top_k or one.top_p < 1.0 or one.min_p for one in given.sampling),
            given.has_signals,
            given.allowed is not None,
            width=given.width,
        )
        begin = perf_counter()
        before = [part for part in (given.logits, given.states) if part is not None]
        fixed = given.vocab_size, given.size, given.allowed, given.ids
        captured = self._captured(
            runner, shape, draft_chains, fixed, 5 + given.steps, torch.float64, lambda: _blank(before, rows)
        )
        if captured is None:
            return None
        numbers, *tensors = captured.run(lengths[:rows], settings_of(given, rows), before)
        raw, *kept = (part[:count].clone() for part in tensors)
        output = read_numbers(numbers[:count], raw, kept, shape)
        for row in range(count):
            lengths[row] += given.steps - 1
        runner.seconds += perf_counter() - begin
        return output

    @torch.inference_mode()
    def try_trees(self, runner: ModelRunner, given: TreeInput) -> list[list[TreeLevel]] | None:
        """Draft a head's trees for the first rows in one replay; None if there is no graph for it."""
        count, lengths = len(given.logits), runner.cached_lengths
        if count > ROWS[-1] or not 2 <= given.depth <= MOST_STEPS or runner.training:
            return None
        rows = ROWS[bisect_left(ROWS, count)]
        slots = slots_class(max(lengths[:rows]) + given.depth * given.top)
        shape, begin = TreeShape(rows, given.depth, given.top, slots), perf_counter()
        before = [given.logits, given.states]
        captured = self._captured(
            runner, shape, draft_trees, (given.ids,), 1, torch.long, lambda: _blank(before, rows)
        )
        if captured is None:
            return None
        (numbers,) = captured.run(lengths[:rows], 0, before)
        levels = read_levels(numbers[:count], shape)
        runner.seconds += perf_counter() - begin
        return levels

    def executor_for(self, runner: ModelRunner, given: PassInput) -> Executor:
        self._drop_moved(runner.cache.plan)
        return super().executor_for(runner, given)

    def _drop_moved(self, plan: Plan) -> None:
        """Drop all graphs if the cache has moved, or is to grow now: they keep the tensors that they read."""
        if self.version != (plan.buffers, plan.capacity, plan.slots):
            self.graphs.clear()
            self.is_full = False

    def prepare(self, runner: ModelRunner) -> None:
        """Capture the likely passes of one text; none beside an open one, whose row they would write to."""
        if runner.request_ids:
            return
        scratch = runner.scratch(self)
        scratch.cache = runner.cache
        scratch.open(0)
        for width in WIDTHS[: WIDTHS.index(LIKELY) + 1]:
            scratch.cached_lengths[0] = 0
            scratch.forward(runner.blank_pass(width))
        scratch.close(0)
        scratch.executor = scratch.eager  # graphs refer to their runner: without gc neither would be freed

    def _shape(self, runner: ModelRunner, given: PassInput) -> PassShape | None:
        count, width = len(given.tokens), max(map(len, given.tokens))
        trees = given.parents or {}
        is_other = given.row != 0 or given.model is not None or bool(given.rope_lengths)
        is_large = width > WIDTHS[-1] or count > ROWS[-1] or (count > 1 and not runner.together)
        grows = any(len(parents) > len(given.tokens[row]) for row, parents in trees.items())
        if is_other or is_large or grows or runner.training:
            return None
        rows, wide = ROWS[bisect_left(ROWS, count)], WIDTHS[bisect_left(WIDTHS, width)]
        return PassShape(rows, wide, slots_class(max(runner.cached_lengths[:rows]) + wide), bool(trees))

    def _captured(
        self,
        runner: ModelRunner,
        shape: Shape,
        function: Function,
        fixed: Sequence[Any],
        columns: int,
        dtype: torch.dtype,
        make_more: Callable[[], list[Tensor]],
    ) -> Captured | None:
        """The graph of a function of numbers, slots, more tensors and the KV cache; None if that fails.

        What is `fixed` is in the graph, after the kernels, the shape and the layers.
        """
        cache, plan = runner.cache, runner.cache.plan
        size = max(shape.first + shape.rows, len(runner.request_ids)), shape.slots
        if size in self.too_large:
            return None
        cache.ready(*size, 0)
        self._drop_moved(plan)
        try:
            tensors = self._cache_tensors(runner, shape)
        except Exception as error:  # an eager pass needs no more than it reads
            if not (self.is_optional and is_out_of_memory(error)):
                raise
            self.too_large.add(size)
            LOG.warning("passes over %d rows of %d tokens run without graphs: %s", *size, one_line(error))
            return None
        self.version = plan.buffers, plan.capacity, plan.slots
        if shape in self.graphs:
            captured = self.graphs[shape] = self.graphs.pop(shape)  # the latest
            return captured
        if self.is_full or shape.kind in self.refused:
            return None
        begin = perf_counter()
        while len(self.graphs) >= MOST_GRAPHS:
            del self.graphs[next(iter(self.graphs))]
        try:
            numbers = Numbers(shape.rows, columns, dtype, runner.device)
            # While it is captured, a row's tokens are written where the replay will write them again.
            array, lengths = numbers.write(), runner.cached_lengths[shape.first :][: shape.rows]
            array[: len(lengths), 0] = lengths
            numbers.send()
            more = make_more()
            inputs = [numbers.device, self._span(shape.slots, runner.device), *more]
            function = partial(function, runner, self.kernels, shape, tuple(self.layers), *fixed)
            replay = self.capture(function, [*inputs, *tensors])
        except Exception as error:  # no memory, or whatever the model's code raises; eager passes still run
            self._refuse(shape, error)
            return None
        finally:
            runner.setup_seconds += perf_counter() - begin
        self.captures += 1
        self.graphs[shape] = captured = Captured(replay, numbers, more)
        return captured

    def _refuse(self, shape: Shape, error: Exception) -> None:
        reason = one_line(error)
        if isinstance(error, NoRoom) or is_out_of_memory(error):  # the graph itself needs some, too
            self.is_full = True
            LOG.warning("no further shapes of passes become graphs: %s", reason)
        else:
            self.refused[shape.kind] = reason
            LOG.warning("%s run without graphs: %s", shape.kind, reason)

    def _fill(self, array: NDArray[Any], runner: ModelRunner, given: PassInput, shape: PassShape) -> None:
        """Write lengths of rows, token ids, and parents within the pass.

        Rows that only pad the pass write after what they hold.
        """
        width, lengths = shape.width, runner.cached_lengths[shape.first :][: shape.rows]
        array[:, : width + 1] = 0
        array[: len(lengths), 0] = lengths
        if shape.has_tree:
            array[:, width + 1 :] = np.arange(-1, width - 1)
        for row, text in enumerate(given.tokens):
            array[row, 1 : 1 + len(text)] = text
            parents = (given.parents or {}).get(row, ())
            begin = len(text) - len(parents)
            for at, parent in enumerate(parents, begin):
                array[row, width + 1 + at] = begin + parent if parent >= 0 else begin - 1

    def _cache_tensors(self, runner: ModelRunner, shape: Shape) -> list[Tensor]:
        """Keys and values of each layer that has any, in turn, shape (rows, heads, slots, size)."""
        tensors: list[Tensor] = []
        for at, sizes in self.layers.items():
            layer = runner.cache.layer(at)
            layer.allocate(sizes, runner.dtype, runner.device)
            tensors += [part[shape.first :][: shape.rows] for part in (layer.keys, layer.values)]
        return tensors

    def _span(self, slots: int, device: torch.device) -> Tensor:
        if slots not in self.spans:
            self.spans[slots] = torch.arange(slots, device=device)
        return self.spans[slots]


def _blank(parts: Sequence[Tensor], rows: int) -> list[Tensor]:
    return [part.new_zeros(rows, part.shape[1]) for part in parts]


def slots_class(longest: int) -> int:
    return max(FIRST_SLOTS, 1 << (longest - 1).bit_length())


def cache_layers(runner: ModelRunner) -> dict[int, tuple[int, int, int, int]]:
    """Return the heads and head size of keys and of values of each layer, after a pass has shown them.

    Raises:
        Unfit: the model's passes cannot be graphs.
    """
    if runner.masks.late:
        raise Unfit("its masks depend on the prompt's length")
    return probe_cache(runner).shapes
