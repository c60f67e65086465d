"""Passes in which a token's logits depend on its text alone, bit for bit, in every precision.

A pass over one token and one over several add the same numbers in another order, so that drafts can change a
text where two tokens are nearly level, above all in half precision. Here all passes are of classes that agree
with passes over one text and `BASE` tokens: whether a class does is found out on this machine, with made-up
tokens and KV cache, before its first pass. A pass is padded up to the next class that agrees; where none
does, texts are read one after another, and long ones in pieces. Trees are not read: their tokens lie in other
slots than those of a chain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from logging import getLogger
from typing import Any

import torch
from torch import Tensor

from ....errors import UserError, one_line
from ... import verdicts
from ...compiled.blueprint import Unfit
from ...compiled.trial import compare
from ...modes import evaluating
from ...probe import fingerprint
from ...probe.readings import made_up
from ...probe.ways import read_pieces
from ...stages import announce
from ...verdicts import machine
from ...weights.packed import layout_of
from ..passes import Executor, PassInput, PassOutput, join_pieces, join_texts
from ..runner import ModelRunner
from .capturer import Choice, least_seconds
from .cuda_graphs import ROWS, WIDTHS, CudaGraphs, cache_layers, slots_class
from .device_capture import Capture, Function, Replay
from .functions import Kernels, PassShape, run_pass

LOG = getLogger(__name__)
BASE = 16  # tokens of the passes that all others have to agree with: on a GPU they cost what one token does
TOKENS, STARTS = 24, 6  # read to find out whether a class agrees, at so many places
LONG = 600  # tokens of a text whose end is read in several ways: more than a block of attention
CHEAP = 1.05  # of the time of other passes: then narrower classes than the base are not looked for
KIND = "exact"  # the file of answers


class ExactPasses(CudaGraphs):
    """Runs every pass of one runner by classes that agree; graphs where `capture` makes them, else calls."""

    kind, drafts = "exact", False
    is_optional = False

    def __init__(self, runner: ModelRunner, agreement: Agreement, *, capture: Capture) -> None:
        super().__init__(runner, capture=partial(capture_or_call, capture), kernels=agreement.kernels)
        self.agreement = agreement

    def try_run(self, runner: ModelRunner, given: PassInput) -> PassOutput | None:
        """Run a pass, as several where no class agrees that has room for it.

        None for a draft by some of the layers: a guess may depend on anything.

        Raises:
            UserError: no class agrees that has room for such a text.
        """
        if given.model is not None:
            return None
        before = len(self.agreement.found)
        with evaluating(runner.model) if runner.training else nullcontext():
            output = super().try_run(runner, given) or self._run_apart(runner, given)
        output.info.is_timed &= len(self.agreement.found) == before
        return output

    def _shape(self, runner: ModelRunner, given: PassInput) -> PassShape | None:
        count, width, first = len(given.tokens), max(map(len, given.tokens)), given.row
        if width > WIDTHS[-1] or count > ROWS[-1] or (count > 1 and not runner.together):
            return None
        rows = ROWS[bisect_left(ROWS, count)]
        longest = max(runner.cached_lengths[first : first + rows])
        for wide in WIDTHS[bisect_left(WIDTHS, width) :]:
            shape = PassShape(rows, wide, slots_class(longest + wide), first=first)
            if self.agreement.holds(shape):
                return shape
        return None

    def _run_apart(self, runner: ModelRunner, given: PassInput) -> PassOutput:
        """Run a pass for each text, several for a long one."""
        before = max(map(len, given.tokens)) - given.logits_to_keep
        rows = enumerate(given.tokens, given.row)
        outputs = [self._run_one(runner, given, row, text, before) for row, text in rows]
        return join_texts(outputs, given.tokens)

    def _run_one(
        self, runner: ModelRunner, given: PassInput, row: int, text: Sequence[int], before: int
    ) -> PassOutput:
        """Read a text in pieces; its first `before` tokens need no logits."""
        parts = []
        for piece in self._pieces(runner, row, text):
            output = super().try_run(
                runner, replace(given, row=row, tokens=[piece], logits_to_keep=len(piece))
            )
            if output is None:
                raise UserError(
                    f"exact=True: passes after {runner.cached_lengths[row]} tokens do not agree with earlier "
                    "ones on this machine; end texts before, or leave exact out"
                )
            parts.append(output)
        output = join_pieces(parts)
        output.logits = output.logits[:, before:]
        return output

    def _pieces(self, runner: ModelRunner, row: int, text: Sequence[int]) -> Iterator[Sequence[int]]:
        """Pieces as long as the largest class that agrees."""
        start = 0
        while start < len(text):
            length = runner.cached_lengths[row]
            shapes = (PassShape(1, width, slots_class(length + width)) for width in reversed(WIDTHS))
            size = next((shape.width for shape in shapes if self.agreement.holds(shape)), BASE)
            yield text[start : start + size]
            start += size


class Agreement:
    """Which classes of passes compute what passes over one text and `BASE` tokens do, bit for bit.

    Half precision hides most differences: on a CPU passes of one token had other bits than longer ones at
    one token of ten. So each class reads `TOKENS` tokens at each of twice `STARTS` places. Answers are saved.

    Raises:
        Unfit: passes of the base do not agree with each other, or the model's cannot be functions.
    """

    def __init__(self, runner: ModelRunner, kernels: Kernels | None = None) -> None:
        self.runner, self.kernels, self.layers = runner, kernels, cache_layers(runner)
        self.narrowest = 1  # classes below this width are not looked for
        self.found: dict[tuple[PassShape, int], bool] = {}  # by class and threads
        self.expected: dict[tuple[int, int, int], list[Tensor]] = {}  # by slots, start and threads
        self.tokens = made_up(TOKENS, runner.model.config)
        layouts = sha256(" ".join(map(layout_of, runner.model.modules())).encode()).hexdigest()[:16]
        on_gpu = runner.device.type == "cuda"
        here = torch.cuda.get_device_name(runner.device) if on_gpu else machine()
        what = fingerprint(runner.model), layouts, here, slots_class(1), kernels is not None
        self.key = " ".join(map(str, what))
        for slots in (slots_class(1), 2 * slots_class(1)):
            if not self.holds(PassShape(1, BASE, slots)):
                raise Unfit("its logits depend on where in a pass a token is, even in passes of one size")

    def holds(self, shape: PassShape) -> bool:
        """Whether passes of a class agree, wherever in them a token is and whatever else they read."""
        shape, threads = shape._replace(first=0), torch.get_num_threads()
        if shape.width < self.narrowest:
            return False
        if (shape, threads) not in self.found:
            key = f"{self.key} threads {threads} {'x'.join(map(str, shape[:3]))}"
            answer = verdicts.load(KIND, key)
            if not isinstance(answer, bool):
                announce(f"finding exact passes: {shape.rows} x {shape.width} tokens, {shape.slots} slots")
                try:
                    answer = self._agrees(shape)
                    verdicts.keep(KIND, key, answer)
                except torch.OutOfMemoryError:  # another start may have the memory
                    answer = False
            self.found[shape, threads] = answer
        return self.found[shape, threads]

    @torch.inference_mode()
    def _agrees(self, shape: PassShape) -> bool:
        """Compare at places that fewer slots reach, and at the end, with passes known to agree."""
        least, rows = slots_class(1), shape.rows
        sizes = [-(-shape.width // 3), *[shape.width] * TOKENS]
        for slots in sorted({least, shape.slots}):
            last = slots - TOKENS - WIDTHS[-1]
            first = 1 if slots == least else slots // 2
            starts = [first + (last - first) * at // (STARTS - 1) for at in range(STARTS)]
            for at in range(0, STARTS, rows):
                chosen = [starts[(at + row) % STARTS] for row in range(rows)]
                actual = self._read(shape, chosen, sizes)
                for start, numbers in zip(chosen, actual, strict=True):
                    if not all(map(torch.equal, numbers, self._expected(slots, start))):
                        return False
        return True

    def _expected(self, slots: int, start: int) -> list[Tensor]:
        key = slots, start, torch.get_num_threads()
        if key not in self.expected:
            (self.expected[key],) = self._read(PassShape(1, BASE, slots), [start], [BASE, TOKENS])
        return self.expected[key]

    def _read(self, shape: PassShape, starts: list[int], sizes: Sequence[int]) -> list[list[Tensor]]:
        """What each row of such passes computes from the same tokens after `starts`, so many in each pass.

        That is logits, keys and values of each token, on the host. What padding reads differs by pass.
        """
        (rows, width, slots, *_), runner = shape, self.runner
        generator = torch.Generator().manual_seed(0)
        cache = [
            torch.randn(heads, slots_class(1), size, generator=generator)
            .to(runner.device, runner.dtype)
            .repeat(rows, 1, slots // slots_class(1), 1)
            .view(rows, heads, slots, size)
            for sizes_of in self.layers.values()
            for heads, size in (sizes_of[:2], sizes_of[2:])
        ]
        logits, done = list[Tensor](), 0
        for size in sizes:
            piece = self.tokens[done : done + min(size, width)]
            if not piece:
                break
            numbers = torch.zeros(rows, 1 + width, dtype=torch.long)
            numbers[:, 0] = torch.tensor(starts) + done
            numbers[:, 1 : 1 + len(piece)] = torch.tensor(piece)
            numbers[:, 1 + len(piece) :] = self.tokens[done % TOKENS]
            span = torch.arange(slots, device=runner.device)
            numbers = numbers.to(runner.device)
            output = run_pass(runner, self.kernels, shape, tuple(self.layers), numbers, span, *cache)
            logits.append(output[0][:, : len(piece)])
            done += len(piece)
        whole = torch.cat(logits, 1)
        return [
            [whole[row].to("cpu", copy=True)]
            + [part[row, :, start : start + done].to("cpu", copy=True) for part in cache]
            for row, start in enumerate(starts)
        ]


def capture_or_call(capture: Capture, function: Function, inputs: Sequence[Tensor]) -> Replay:
    """Capture a function; one that cannot be captured is called, since no other computes the same."""
    try:
        return capture(function, inputs)
    except Exception as error:  # no memory, or whatever the model's code raises
        LOG.warning("exact passes run without graphs: %s", one_line(error))
        return partial(function, *inputs)


class ExactCompiler:
    """Provides a runner with exact passes; `state` tells in one line how they run, and at what price.

    Passes of another `compiler` are taken as they are, if they agree. `kernels` chooses what computes others.

    Raises:
        UserError: this model has none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        make_capture: Callable[[], Any],
        compiler: Any = None,
        kernels: Choice | None = None,
    ) -> None:
        self.runner, self.make_capture = runner, make_capture
        self.compiler, self.kernels = compiler, kernels
        self.price = 1.0
        self._find()

    @property
    def state(self) -> str:
        passes = self.runner.executor
        if not isinstance(passes, ExactPasses):
            return f"exact: its {passes.kind} passes agree as they are"
        found = passes.agreement.found.items()
        agree = sorted({shape[:2] for (shape, _), holds in found if holds})
        classes = ", ".join(f"{rows}x{width}" for rows, width in agree)
        return f"exact: a token takes {self.price:.2f} times a pass that need not agree; classes {classes}"

    def restart(self) -> None:
        if self.compiler is not None:
            self.compiler.restart()
        self._find()

    def _find(self) -> None:
        """Keep the runner's passes if they agree, else find classes that do."""
        runner = self.runner
        runner.is_exact, runner.poll = True, None
        if not runner.executor.is_bound and runner.executor is not runner.eager and passes_agree(runner):
            return
        runner.executor = runner.eager
        with evaluating(runner.model):
            passes = self._passes(runner)
        runner.use(passes)
        passes.prepare(runner)

    def _passes(self, runner: ModelRunner) -> ExactPasses:
        try:
            agreement = Agreement(runner, self.kernels.choose() if self.kernels else None)
            trial = ExactPasses(runner, agreement, capture=self.make_capture())
            compare(runner, trial)
            trial.graphs.clear()
        except Unfit as reason:
            raise UserError(f"exact=True: {reason}; leave exact out") from reason
        agreement.narrowest = BASE
        self.price = price_of(runner, agreement, self.make_capture)
        if self.price > CHEAP:
            agreement.narrowest = 1
            self.price = price_of(runner, agreement, self.make_capture)
        return ExactPasses(runner, agreement, capture=self.make_capture())


def price_of(runner: ModelRunner, agreement: Agreement, make_capture: Callable[[], Any]) -> float:
    """The time of a pass over one token over that of one that need not agree."""
    plain: Executor = runner.eager
    if runner.device.type != "cpu":
        plain = CudaGraphs(runner, capture=make_capture(), kernels=agreement.kernels)
    other, own = least_seconds(runner, [plain, ExactPasses(runner, agreement, capture=make_capture())])
    return own / other


def passes_agree(runner: ModelRunner) -> bool:
    """Whether the runner's passes, as they are, give each token the same logits, however a text is read."""
    begin = min(LONG, runner.max_length - 2 * TOKENS)
    tokens = made_up(begin + 2 * TOKENS, runner.model.config)
    expected = read_pieces(runner, tokens, begin, [begin, 2 * TOKENS])
    alone = read_pieces(runner, tokens, begin, [begin, 1, 1, 2, 3, 5, TOKENS, TOKENS])
    sizes = [5, begin - BASE, BASE, 1, 9, 1, TOKENS, TOKENS]
    beside = read_pieces(runner, tokens, begin, sizes, others=int(runner.together))
    return torch.equal(alone, expected) and torch.equal(beside, expected)
