"""Runs one Transformers causal LM on many requests at once, each with its own length."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import Parameter
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.passes import PassInfo
from ...errors import UserError
from ..attention import replaced
from ..cache_names import name_for
from ..heads.pairs import PairModel
from ..modes import weights_version
from .cache import RowCache
from .executors.eager import Eager
from .masks import Masks, tree_attention
from .passes import Executor, PassInput, PassOutput, PreparedPass, join_texts
from .traits import Traits, ask

FREE = -1  # the request id of an unused row


class ModelRunner:
    """One model with a KV cache that has a row for each request.

    `cached_lengths[row]` is the number of tokens with valid keys and values; lowering it is a rollback.
    `seconds` is the total time inside the model, `setup_seconds` that of work which is done once, such as
    compiling between two passes. Texts are read `together` in one pass, or one at a time if
    the model counts positions by the cache's length. If `guided`, position ids and attention masks are passed
    in; otherwise the model computes its own. How the model treats masks and positions is probed, unless
    `traits` are given. A `stateful` runner keeps states that cannot rewind (`StateRunner`).

    Passes are run by the `executor`, or by one that it names. `poll`, if it is set, is called before every
    pass, and tells whether it did something that took time (`compiler`).
    """

    stateful = steps = free = False
    least = 1  # tokens of a prompt that a pass has to read

    def __init__(self, model: Any, *, traits: Traits | None = None) -> None:
        replaced()  # the model's attention, in passes of ours
        self.model = model
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.config = model.config.get_text_config(decoder=True)
        self.depth = int(getattr(self.config, "num_hidden_layers", None) or 0)
        self.traits = traits = traits or ask(model)
        self.masks = Masks(traits.views, traits.all_of, self.dtype, self.device)
        self.rope = traits.rope
        self.max_length, self.trained = traits.limit, traits.trained
        self.request_ids: list[int] = []
        self.cached_lengths: list[int] = []
        self.prompts: dict[int, int] = {}  # by request, for models that read them otherwise than later tokens
        self.seconds = self.setup_seconds = 0.0
        self.together = self.guided = True
        self.eager = self._eager()
        self.executor: Executor = self.eager
        self.compiler: Any = None  # provides another executor
        self.poll: Callable[[], bool] | None = None
        self.cache = self._new_cache()
        self.cache_name, named = name_for(model), inspect.signature(model.forward).parameters
        self.keeps, self._masked = "logits_to_keep" in named, "attention_mask" in named
        self.reads_states = isinstance(model, PairModel)  # and returns its own
        self.layers: tuple[int, ...] = (-1,) * self.reads_states  # whose hidden states every pass returns
        self._by_index = keeps_by_index(named.get("logits_to_keep"), self.device, self.dtype)
        self.positions = torch.arange(0, device=self.device)
        self.one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.training = False  # whether a module was in training mode when the latest row was opened
        self.version: int | None = None  # of the weights, when `has_changed` was asked
        self.is_exact = False  # whether a token's logits depend on its text alone, bit for bit

    def _eager(self) -> Eager:
        return Eager()

    def _new_cache(self) -> RowCache:
        cache = RowCache(self.depth, self.cached_lengths)
        if self.executor.buffers:
            cache.fix(*self.executor.buffers)
        return cache

    def use(self, executor: Executor) -> None:
        self.executor = executor
        if executor.buffers:
            self.cache.fix(*executor.buffers)

    def open(self, request_id: int) -> None:
        self.training = any(module.training for module in self.model.modules())
        if FREE in self.request_ids:
            self.request_ids[self.request_ids.index(FREE)] = request_id
        else:
            self.request_ids.append(request_id)
            self.cached_lengths.append(0)

    def close(self, request_id: int) -> None:
        """Free a row; rows are moved only when a pass needs the place."""
        if request_id in self.request_ids:
            row = self.request_ids.index(request_id)
            self.request_ids[row], self.cached_lengths[row] = FREE, 0
            while self.request_ids and self.request_ids[-1] == FREE:
                self.request_ids.pop()
                self.cached_lengths.pop()
            if self.request_ids:
                self.cache.erase(row)
            elif not self.cache.clear():
                self.cache = self._new_cache()

    def has_changed(self) -> bool:
        """Return whether the weights or the active adapters are others than at the last call.

        Compiled passes, which may have the old ones, are dropped.
        """
        before, self.version = self.version, weights_version(self.model)
        if before in (None, self.version):
            return False
        if self.is_exact:
            self.compiler.restart()
        else:
            self.executor, self.compiler, self.poll = self.eager, None, None
        return True

    def request_hidden_states(self, layers: Sequence[int]) -> None:
        """Let every pass return the hidden states of these layers, too.

        Layers are numbered like Transformers' `hidden_states`: 0 is the embedding, k the output of the k-th
        layer, -1 the last after the final norm.

        Raises:
            UserError: the model has no such layer.
        """
        if not set(layers) <= set(self.layers):
            wanted = tuple(sorted({*self.layers, *layers}))
            self.eager.hook(self.model, wanted)
            self.layers = wanted
            if self.compiler is not None:
                self.compiler.restart()

    def scratch(self, executor: Executor | None = None) -> ModelRunner:
        """Return an empty runner of the same model, with this executor or with eager passes."""
        other = type(self)(self.model, traits=self.traits)
        other.together, other.guided, other.layers = self.together, self.guided, self.layers
        other.eager = self.eager
        other.executor = executor or self.eager
        return other

    def move_to_front(self, request_ids: Sequence[int]) -> list[int]:
        """Move the rows of these requests to the front, so that a pass uses one slice of the cache.

        Returns the row of each request.
        """
        n = len(request_ids)
        if n < len(self.request_ids):
            wanted = set(request_ids)
            spare = [row for row in range(n) if self.request_ids[row] not in wanted]
            for row in range(n, len(self.request_ids)):
                if self.request_ids[row] in wanted:
                    self._exchange(spare.pop(), row)
        return [self.request_ids.index(one) for one in request_ids]

    def share(self, row: int, other: int, length: int) -> None:
        """Copy the first `length` tokens of another row, whose text must be the same there."""
        self.cache.copy_row(other, row, length)
        self.cached_lengths[row] = length

    def truncate(self, row: int, length: int) -> None:
        """Roll a row back to its first `length` tokens, of which none is a guess any more."""
        self.cached_lengths[row] = length

    def forward(self, given: PassInput) -> PassOutput:
        """Run one forward pass, or one for each text where they cannot share one."""
        busy = False
        if self.poll is not None:
            begin = perf_counter()
            busy = self.poll()
            self.setup_seconds += perf_counter() - begin
        before = self.setup_seconds
        output = self.executor.try_run(self, given)
        if output is None:
            # Entering the mode once more takes several microseconds.
            with nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
                output = self._forward(given)
        if busy or self.setup_seconds != before:  # also where a capture has failed
            output.info.is_timed = False
        return output

    def _forward(self, given: PassInput) -> PassOutput:
        texts, lengths, keep = given.tokens, given.rope_lengths, given.logits_to_keep
        if len(texts) > 1 and not (self.together and len(set(map(self.rope.regime, lengths))) < 2):
            return self._read_apart(given)
        prepared = self._prepare(given)
        executor = self.executor.executor_for(self, given)
        begin = perf_counter()
        logits, states = executor.run(self, prepared)
        self.seconds += perf_counter() - begin
        if self.cache.counted:
            self._separate(given)
            return self._read_apart(given)
        for i, text in enumerate(texts):
            self.cached_lengths[given.row + i] += len(text)
        if extra := prepared.extra:
            states = {layer: part[:, :-extra] for layer, part in states.items()}
        if logits.shape[1] != keep:
            logits = logits[:, -keep - extra : -extra or None]
        return PassOutput(logits, states, PassInfo(executor.kind))

    def _prepare(self, given: PassInput) -> PreparedPass:
        texts, lengths = given.tokens, given.rope_lengths
        width = len(texts[0]) if len(texts) == 1 else max(map(len, texts))
        starts = self.cached_lengths[given.row : given.row + len(texts)]
        extra = 0
        if lengths and self.guided:
            extra = self._masked_columns(max(lengths), max(starts) + width)
            width += extra
        ids = self._ids(texts, width)
        even = starts.count(starts[0]) == len(starts)
        rows, tree, columns = len(self.request_ids), bool(given.parents), given.logits_to_keep + extra
        total = self.cache.schedule(
            given.row, starts, width, even=even, rows=rows, slots=given.slots, tree=tree
        )
        named: dict[str, Any] = {}
        if self.keeps:
            by_index = self._by_index and columns < width
            named["logits_to_keep"] = torch.arange(width - columns, width) if by_index else columns
        if given.states is not None:
            named["states"] = given.states
        if given.parents:
            places = self._tree_places(starts, width, total, even, [len(t) for t in texts], given.parents)
            named["position_ids"], named["attention_mask"] = places
        else:
            named |= self._arguments(ids, starts, total, even)
        if extra:
            at = named["position_ids"] = named["position_ids"].expand(len(texts), -1).clone()
            for i, text in enumerate(texts):
                at[i, len(text) :] = max(lengths) - 1
        return PreparedPass(ids, named, columns, extra, given.model)

    def _arguments(self, ids: Tensor, starts: list[int], total: int, even: bool) -> dict[str, Any]:
        if self.guided:
            at, mask = self._places(starts, ids.shape[1], total, even)
            return {"position_ids": at, "attention_mask": mask}
        return {"attention_mask": ids.new_ones(1, total)} if self._masked else {}

    def _read_apart(self, given: PassInput) -> PassOutput:
        texts, parents = given.tokens, given.parents or {}
        before = max(map(len, texts)) - given.logits_to_keep
        outputs = []
        for i, text in enumerate(texts):
            one = replace(
                given,
                row=given.row + i,
                tokens=[text],
                logits_to_keep=len(text) - before,
                parents={0: parents[i]} if i in parents else None,
                rope_lengths=given.rope_lengths[i : i + 1],
                states=None if given.states is None else given.states[i : i + 1, : len(text)],
            )
            outputs.append(self._forward(one))
        return join_texts(outputs, texts)

    def _separate(self, given: PassInput) -> None:
        """Read texts one at a time from now on, since a layer counts its positions by the cache's length."""
        self.cache.counted = False
        if given.parents:
            raise UserError(
                f"{type(self.model).__name__} counts positions by the length of its cache, so it cannot read "
                "a tree of drafted tokens: use a policy that drafts chains"
            )
        self.together = False

    def blank_pass(self, width: int) -> PassInput:
        """Return a pass of one row that reads zeros."""
        states = self.blank_states(1, width) if self.reads_states else None
        return PassInput(0, [[0] * width], width, states=states)

    def blank_states(self, rows: int, width: int) -> Tensor:
        """Return states of zeros for a head's pass, shape (rows, width, size)."""
        return torch.zeros(rows, width, self.model.width, dtype=self.dtype, device=self.device)

    def _masked_columns(self, length: int, total: int) -> int:
        """Return how many columns a pass of `total` positions needs in addition to get the frequencies of a
        text of `length` tokens: one masked column at its end if they would differ."""
        self.rope.forget()
        return int(self.rope.regime(total) != self.rope.regime(length))

    def _places(self, starts: list[int], width: int, total: int, even: bool) -> tuple[Tensor, Any]:
        """Position ids, shape (rows, width), and the additive mask, shape (rows, 1, width, total) or None."""
        at = self._slots(starts, width, total, even)
        plain = even and total <= self.masks.all_of
        if plain and width == 1:
            mask: Any = None
        elif plain and self.masks.keeps(width, total):
            mask = self.masks.band(width, total, self.positions)
        else:
            slots, here = self.positions[:total], at[:, None, :, None]
            mask = self._mask(slots > here, slots, here)
        # Padding may be beyond the last position that the model has an embedding for.
        return (at.clamp(max=self.max_length - 1) if total > self.max_length else at), mask

    def _slots(self, starts: list[int], width: int, total: int, even: bool) -> Tensor:
        """The slots that a pass writes, shape (rows, width); a single row if all are `even`."""
        if len(self.positions) < total:
            self.positions = torch.arange(2 * total, device=self.device)
        if even:
            return self.positions[starts[0] : starts[0] + width][None]
        slots = np.add.outer(starts, np.arange(width))
        self.cache.plan.place(slots)
        return self._tensor(slots)

    def _tree_places(
        self,
        starts: list[int],
        width: int,
        total: int,
        even: bool,
        lengths: Sequence[int],
        trees: Mapping[int, Sequence[int]],
    ) -> tuple[Tensor, Any]:
        """Position ids and mask of a pass in which some texts end in trees; shapes as for `_places`."""
        at = self._slots(starts, width, total, even).expand(len(starts), -1)
        visible, places, older = tree_attention(starts, width, lengths, trees)
        here, slots = self._tensor(places), self.positions[:total]
        columns = at[:, None, None].expand(-1, -1, width, -1)
        unseen = (slots > at[:, None, :, None]).scatter(3, columns, ~self._tensor(visible)[:, None])
        lying = slots.expand(len(starts), -1).scatter(1, at, here)
        for row, old, family in older:
            base = starts[row] - old
            unseen[row, 0, : lengths[row], base : base + old] = ~self._tensor(family[old:, :old])
            lying[row, base : base + old] = self._tensor(base - 1 + family[:old].sum(1))
        mask = self._mask(unseen, lying[:, None, None], here[:, None, :, None])
        return here.clamp(max=self.max_length - 1), mask

    def _mask(self, unseen: Tensor, places: Tensor, here: Tensor) -> Any:
        """The mask of a pass, for tokens at `here` and slots at `places`, shaped to broadcast to `unseen`."""
        prompts = here
        if self.masks.late:
            ids = self.request_ids[self.cache.plan.first : self.cache.plan.last]
            prompts = self._tensor([self.prompts.get(one, 0) for one in ids])[:, None, None, None]
        return self.masks.build(unseen, places, here, prompts)

    def _ids(self, texts: Sequence[Sequence[int]], width: int) -> Tensor:
        if len(texts) > 1 or width > len(texts[0]):
            return self._tensor([[*t, *(0,) * (width - len(t))] for t in texts])
        return self.one.fill_(texts[0][0]) if width == 1 else self._tensor(texts)

    def _tensor(self, numbers: Any) -> Tensor:
        """Integers on the device, without waiting; NumPy converts small nested lists faster."""
        return torch.from_numpy(np.asarray(numbers)).to(self.device, non_blocking=True)

    def _exchange(self, a: int, b: int) -> None:
        if self.request_ids[a] == FREE:
            self.cache.copy_row(b, a, self.cached_lengths[b])
            self.cache.erase(b)
        else:
            self.cache.swap_rows(a, b, max(self.cached_lengths[a], self.cached_lengths[b]))
        for column in (self.request_ids, self.cached_lengths):
            column[a], column[b] = column[b], column[a]


def keeps_by_index(parameter: Parameter | None, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether `logits_to_keep`, this parameter of forward, takes indices, and they are faster.

    On a CPU without matrix instructions for bfloat16, PyTorch 2.13 multiplies a slice of states, as a number
    gives, 40 times slower than the copy that indices give: 0.6 s instead of 15 ms for 152,000 tokens of
    vocabulary.
    """
    slow = device.type == "cpu" and dtype == torch.bfloat16
    return slow and parameter is not None and "Tensor" in str(parameter.annotation)
