"""Times two layouts of the weights on this machine in turn, until it is clear which is faster.

So it is chosen how layers of one shape are stored, and whether those of one input share a product.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import comb, inf
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from .. import verdicts
from ..verdicts import finish, machine, save_answer, trials
from .layouts import KERNELS, LAYOUTS, PANELS, TURNED, PackedLinear, floats, joined, turn
from .lazy import read

WIDTHS: tuple[int, ...] = (1, 5, 9, 17)  # tokens per pass: plain decoding, and drafts of 4, 8 and 16 tokens
DRAFTING: tuple[int, ...] = (1, 2, 4)  # tokens per pass of a head: a step of a draft, an accepted round
PROMPT = 192  # tokens of a prompt in one pass
MANY = 12  # rounds after which an unclear answer is a draw
FEWEST = 6  # minimum number of rounds; each times one pass per width and layout
DOUBT = 0.02  # significance level of a sign test: the chance of as many wins by luck
SLOWER = 1.25  # slowdown at one width that no gain at another outweighs
STEADY = 0.2  # largest relative median absolute deviation of the ratio; above it, the machine counts as busy
BUDGET = 0.4  # seconds for one shape

Pass = Callable[[int], object]  # a pass through some layers, at a width


@dataclass(frozen=True, slots=True)
class Timing:
    """Rounds of timed passes in both layouts.

    `ratios` is the packed layout's time over the plain one's at each width (median over rounds); `wins`
    counts the rounds in which it was faster. `steady` is False if the machine was busy.
    """

    rounds: int
    wins: int
    ratios: tuple[float, ...]
    steady: bool

    @property
    def sure(self) -> bool:
        return _luck(self.rounds, max(self.wins, self.rounds - self.wins)) < DOUBT

    @property
    def pays(self) -> bool:
        """Whether the packed layout is faster and much slower at no width; if unsure, faster at each."""
        return 2 * self.wins > self.rounds and max(self.ratios) < (SLOWER if self.sure else 1.0)

    @property
    def lasting(self) -> bool:
        """Whether to save the answer: clear, or a draw of many rounds, and no other process disturbed it."""
        return self.steady and (self.sure or self.rounds >= MANY)

    @property
    def rounded(self) -> list[float]:
        return [round(ratio, 3) for ratio in self.ratios]


def measure(
    plain: Pass,
    packed: Pass,
    *,
    budget: float = BUDGET,
    limit: float = inf,
    before: Callable[[], object] = int,
    widths: Sequence[int] = WIDTHS,
) -> Generator[None, None, Timing | None]:
    """Time both layouts in turn, one pass of each per step, until one is clearly faster or `budget` is spent.

    `before` is called before each timed pass. None if even one round would take more than `limit` seconds.
    """
    spent = 0.0
    for width in widths:  # the first pass compiles and allocates
        start = perf_counter()
        plain(width), packed(width)
        if (perf_counter() - start) * 2 * len(widths) > limit:
            return None
        limit = inf  # the first width tells
        yield
    rounds: list[list[tuple[float, float]]] = []
    while True:
        rounds.append([])
        for width in widths:
            start, turned = perf_counter(), len(rounds) % 2 == 0
            rounds[-1].append(_pair(plain, packed, width, before, turned=turned))
            spent += perf_counter() - start
            yield
        timing = _timing(rounds)
        if (len(rounds) >= FEWEST and timing.sure) or spent > budget:
            return timing


def keeps_up(plain: Pass, packed: Pass) -> bool:
    """Whether the packed layout is not much slower at reading a prompt, by the least of three passes each."""
    pairs = [_pair(plain, packed, PROMPT, int, turned=turn % 2 == 1) for turn in range(3)]
    before, after = (min(times) for times in zip(*pairs, strict=True))
    return bool(after <= SLOWER * before)


def _pair(
    plain: Pass, packed: Pass, width: int, before: Callable[[], object], *, turned: bool
) -> tuple[float, float]:
    def timed(run: Pass) -> float:
        before()
        start = perf_counter()
        run(width)
        return perf_counter() - start

    seconds = {run: timed(run) for run in ((packed, plain) if turned else (plain, packed))}
    return seconds[plain], seconds[packed]


def _timing(rounds: list[list[tuple[float, float]]]) -> Timing:
    before = [sum(plain for plain, _ in each) for each in rounds]
    after = [sum(packed for _, packed in each) for each in rounds]
    wins = sum(b < a for a, b in zip(before, after, strict=True))
    ratios = tuple(
        median(packed / max(plain, 1e-9) for plain, packed in width) for width in zip(*rounds, strict=True)
    )
    each = [a / max(b, 1e-9) for a, b in zip(after, before, strict=True)]
    middle = median(each)
    return Timing(len(rounds), wins, ratios, median(abs(x - middle) for x in each) <= STEADY * middle)


def _luck(rounds: int, wins: int) -> float:
    return float(sum(comb(rounds, k) for k in range(wins, rounds + 1)) / 2**rounds)


SMALLEST = 1 << 17  # smaller weights lose more by the call than they gain by PyTorch's layouts (measured)
OURS = 8  # times smaller ones still gain by panels, in graphs that call our kernel (measured)
TIMED = 1 << 24  # bytes of weights read in a timed pass: more than fits in a core's own cache
MOST = 1 << 25  # bytes of one weight in a timed pass; of a larger one its first rows
OTHERS = 1 << 25  # bytes that are read between two timed passes
PACKING = "packing"  # the file of verdicts
ROWS = "rows"  # PyTorch's own layout
FULL, HALF = "float32", "bfloat16"  # of a head
FUSED, APART = "fused", "apart"  # layers of the same input: one product, or one each

DECIDED: dict[str, str] = {}  # in this process, unclear ones too, so that a model writes the same text


def possible(weight: Tensor, *, shared: bool = False, copied: bool = False) -> tuple[str, ...]:
    """A weight's layouts other than its own; a shared one may be turned, and if `copied` stored twice."""
    size = weight.numel()
    large = size >= SMALLEST
    fitting = [name for name in LAYOUTS if large or (name in KERNELS and OURS * size >= SMALLEST)]
    weight = read(weight)
    stored = [name for name in fitting if LAYOUTS[name].supports(weight)] * (copied or not shared)
    return (*[TURNED] * (large and shared and floats(weight)), *stored)


def first(layers: Sequence[nn.Linear], names: Sequence[str], widths: Sequence[int] = WIDTHS) -> str:
    """Always the same layout, if there is one: oneDNN's, or else by columns."""
    return next((name for name in ("onednn", "columns") if name in names), ROWS)


def alone(layers: Sequence[nn.Linear], names: Sequence[str]) -> str:
    """Our own layout, if there is one: its kernel computes the same bits for a token in every pass."""
    return next((name for name in KERNELS if name in names), "") or first(layers, names)


def always(groups: Sequence[Sequence[nn.Linear]]) -> bool:
    return True


@torch.inference_mode()
def fastest(layers: Sequence[nn.Linear], names: Sequence[str], widths: Sequence[int] = WIDTHS) -> str:
    """The layout in which passes of these widths through layers of one shape are the fastest on this machine.

    The answer is saved. Without time for a trial it is that of the last other shape, or `first`.
    """
    key = f"{_here(layers[:1])} of {' '.join(names)}{_of(widths)}"
    alike = next((answer for answer in reversed(DECIDED.values()) if answer in names), "")
    guess = alike or first(layers, names)
    return decided(key, (ROWS, *names), lambda: _timed(layers, names, key, widths), guess)


@torch.inference_mode()
def faster_fused(groups: Sequence[Sequence[nn.Linear]]) -> bool:
    """Whether one product for each group takes less time than one for each layer, in the fastest layouts."""
    key = f"{_here(groups[0])} {FUSED}"
    return decided(key, (APART, FUSED), lambda: _compared(groups, key), FUSED) == FUSED


def faster_in_half(layers: Sequence[nn.Linear]) -> bool:
    """Whether a head's float32 layers are faster in bfloat16, each in its fastest layout.

    Without time for a trial it is true where bfloat16 has our kernel.
    """
    key = f"{_here(layers)} {HALF}{_of(DRAFTING)}"
    guess = HALF if LAYOUTS[PANELS].supports(layers[0].weight.new_empty(2, 2, dtype=torch.bfloat16)) else FULL
    return decided(key, (FULL, HALF), lambda: _compared_in_half(layers, key), guess) == HALF


def _compared_in_half(layers: Sequence[nn.Linear], key: str) -> str:
    def through(modules: list[nn.Module], dtype: torch.dtype) -> Pass:
        inputs = [_inputs(layer.weight.to("meta", dtype)) for layer in layers]
        return lambda width: [one(x[width]) for one, x in zip(modules, inputs, strict=True)]

    layers = [_part(layer) for layer in layers]
    with torch.inference_mode():
        full = [module for layer in layers for module in _quickest([layer], DRAFTING)]
        halves = [deepcopy(layer).to(torch.bfloat16) for layer in layers]
        half = [module for layer in halves for module in _quickest([layer], DRAFTING)]
        passes = through(full, torch.float32), through(half, torch.bfloat16)
        return compared(*passes, key, (FULL, HALF), DRAFTING)


def _of(widths: Sequence[int]) -> str:
    return "" if widths == WIDTHS else f" at {' '.join(map(str, widths))}"


def _compared(groups: Sequence[Sequence[nn.Linear]], key: str) -> str:
    size = sum(layer.weight.nbytes for layer in groups[0])
    some = groups[: max(1, TIMED // size)]
    one = _quickest([joined(group) for group in some])
    columns = [_quickest(list(column)) for column in zip(*some, strict=True)]
    several = [layer for group in zip(*columns, strict=True) for layer in group]  # as a model calls them
    inputs = _inputs(groups[0][0].weight)
    return compared(
        lambda width: [layer(inputs[width]) for layer in several],
        lambda width: [layer(inputs[width]) for layer in one],
        key,
        (APART, FUSED),
    )


def compared(
    plain: Pass, other: Pass, key: str, answers: tuple[str, str], widths: Sequence[int] = WIDTHS
) -> str:
    """Time two ways of computing the same, and save the name of the winner; "" without the time for it."""
    timing = _measured(plain, other, widths)
    if timing is None:
        return ""
    ratios = {f"{answers[1]} over {answers[0]}": timing.rounded}
    save_answer(PACKING, key, {"layout": answers[timing.pays], "ratios": ratios}, lasting=timing.lasting)
    return answers[timing.pays]


def _measured(plain: Pass, other: Pass, widths: Sequence[int]) -> Timing | None:
    """The times of two ways within the time left for trials; None without enough of it.

    Before each timed pass so much is read that it finds its weights in memory, as after the layers of a large
    model. A drafter of 5 MB that is timed again and again finds all in the cache. After passes of the target
    it does not: there, calls of PyTorch's libraries take several times as long, and ours do not (measured).
    """
    now, others = trials(), torch.ones(OTHERS // 4).sum
    steps = measure(plain, other, budget=now.budget(BUDGET), limit=now.limit, before=others, widths=widths)
    return finish(now.spread("layouts of weights", steps))


def _quickest(layers: Sequence[nn.Linear], widths: Sequence[int] = WIDTHS) -> list[nn.Module]:
    layers = [_read(layer) for layer in layers]
    weight = layers[0].weight
    names = possible(weight)
    layout = fastest(layers, names, widths) if names else ROWS
    return [_stored(layer, layout) for layer in layers]


def decided(key: str, answers: Sequence[str], timed: Callable[[], str], guess: str) -> str:
    """The answer to a question, from this process, the saved ones, or a timing; else a guess."""
    if key not in DECIDED:
        verdict = verdicts.load(PACKING, key)
        saved = verdict.get("layout") if isinstance(verdict, dict) else None
        usable = next((answer for answer in answers if answer == saved), "")
        new = timed() if trials().wants(verdict if usable else None) else ""
        DECIDED[key] = new or usable or guess
    return DECIDED[key]


def _here(layers: Sequence[nn.Linear]) -> str:
    weight, here = layers[0].weight, machine(torch.get_num_threads())
    rows = "+".join(str(len(layer.weight)) for layer in layers)
    bias = "" if layers[0].bias is None else " + bias"
    return f"{here} {weight.dtype} {rows} x {weight.shape[1]}{bias}, after others"


def _inputs(weight: Tensor) -> dict[int, Tensor]:
    """Tokens for a layer, by width: tensors of their own, since PyTorch multiplies a view more slowly."""
    rng = torch.Generator().manual_seed(0)  # leaves the user's own random generator unchanged
    size, dtype = weight.shape[1], weight.dtype
    widths = {*WIDTHS, *DRAFTING, PROMPT}
    return {width: torch.rand(1, width, size, generator=rng).to(dtype) for width in sorted(widths)}


def _timed(
    layers: Sequence[nn.Linear], names: Sequence[str], key: str, widths: Sequence[int] = WIDTHS
) -> str:
    """The winner of timings in turn: each layout against the best one before it; "" without the time.

    A head's layers need not keep up at a prompt: it is a fraction of what the target reads.
    """
    weight = layers[0].weight
    some = [_part(layer) for layer in layers[: max(1, TIMED // weight.nbytes)]]
    inputs = _inputs(weight)

    def through(layout: str) -> Pass:
        modules = [_stored(one, layout) for one in some]
        return lambda width: [module(inputs[width]) for module in modules]

    best, kernel, lasting, ratios = ROWS, through(ROWS), True, dict[str, list[float]]()
    for name in names:
        timing = _measured(kernel, challenger := through(name), widths)
        if timing is None:
            lasting = False
            continue
        ratios[f"{name} over {best}"] = timing.rounded
        lasting = timing.lasting and (lasting or timing.pays)  # who beats the best beats all before it
        if timing.pays and (widths == DRAFTING or keeps_up(kernel, challenger)):
            best, kernel = name, challenger
    if not ratios:
        return ""
    save_answer(PACKING, key, {"layout": best, "ratios": ratios}, lasting=lasting)
    return best


def _part(layer: nn.Linear) -> nn.Linear:
    """As many of a layer's first outputs as are timed."""
    layer = _read(layer)
    weight, bias = layer.weight, layer.bias
    rows = len(weight) * MOST // weight.nbytes
    if rows >= len(weight):
        return layer
    part = nn.Linear(layer.in_features, rows, bias=bias is not None, device="meta")
    part.weight = nn.Parameter(weight[:rows], requires_grad=False)
    part.bias = None if bias is None else nn.Parameter(bias[:rows], requires_grad=False)
    return part


def _read(layer: nn.Linear) -> nn.Linear:
    """The layer itself, or one with the values of its lazy weight."""
    weight = read(layer.weight)
    if weight is layer.weight:
        return layer
    plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    plain.weight, plain.bias = nn.Parameter(weight, requires_grad=False), layer.bias
    return plain


def _stored(layer: nn.Linear, layout: str) -> nn.Module:
    if layout == ROWS:
        return layer
    if layout != TURNED:
        return PackedLinear(layer, layout)
    beside = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    beside.weight, beside.bias = layer.weight, layer.bias
    return turn(beside)
