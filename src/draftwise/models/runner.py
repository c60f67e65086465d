"""Runs one Transformers causal LM on many texts at once, each with its own length."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import UserError
from .attached import Few, Graph, Passes, Watcher
from .attention import replaced, shared_heads
from .cache import RowCache
from .cache_names import name_for
from .kept import copies, last
from .masks import BANDED, Masks, grown
from .modes import evaluating, weights_version
from .traits import Traits, ask

FREE = -1  # the key of an unused row


class Rows:
    """Texts of one model, one row of the KV cache each, identified by a key.

    `held[row]` is the number of tokens with valid keys and values; lowering it is a rollback. `seconds` is
    the total time inside the model's forward pass. Texts are read `together` in one pass, or one at a time if
    the model counts positions by the cache's length. If `guided`, position ids and attention masks are passed
    in; otherwise the model computes its own. How the model treats masks and positions is probed, unless
    `traits` are given. `stateful` rows keep states that cannot rewind (`StateRows`).
    """

    stateful = steps = free = False
    least = 1  # tokens of a prompt that a pass has to read

    def __init__(self, model: Any, *, traits: Traits | None = None) -> None:
        replaced()  # the model's attention, in passes of ours
        self.model = model
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.config = model.config.get_text_config(decoder=True)
        self.traits = traits = traits or ask(model)
        self.masks = Masks(traits.views, traits.all_of, self.dtype, self.device)
        self.rope = traits.rope
        self.max_length, self.trained = traits.limit, traits.trained
        self.keys: list[int] = []
        self.held: list[int] = []
        self.prompts: dict[int, int] = {}  # by key, for models that read them otherwise than later tokens
        self.seconds = 0.0
        self.together = self.guided = True
        self.watchers: list[Watcher] = []
        self.graph: Graph | None = None  # the model's compiled passes
        self.passes: Passes | None = None  # what provides them
        self.cache = self._fresh()
        self.cache_name, named = name_for(model), inspect.signature(model.forward).parameters
        self.keeps, self._masked = "logits_to_keep" in named, "attention_mask" in named
        self._copies = copies(named.get("logits_to_keep"), self.device, self.dtype)
        self.positions = torch.arange(0, device=self.device)
        self.one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.few = Few(BANDED[0])
        self.training = False  # whether a module was in training mode when the latest row was opened
        self.version: int | None = None  # of the weights, when `changed` was asked

    def open(self, key: int) -> None:
        """Add an empty row, reusing a freed one if there is any."""
        self.training = any(module.training for module in self.model.modules())
        if FREE in self.keys:
            self.keys[self.keys.index(FREE)] = key
        else:
            self.keys.append(key)
            self.held.append(0)

    def changed(self) -> bool:
        """Whether the weights or the active adapters are others than at the last call.

        Compiled passes, which may have the old ones, are dropped.
        """
        before, self.version = self.version, weights_version(self.model)
        if before in (None, self.version):
            return False
        self.graph = self.passes = None
        return True

    def close(self, key: int) -> None:
        """Free a row; rows are moved only when a pass needs the place."""
        if key in self.keys:
            row = self.keys.index(key)
            self.keys[row], self.held[row] = FREE, 0
            while self.keys and self.keys[-1] == FREE:
                self.keys.pop()
                self.held.pop()
            if not self.keys and not self.cache.clear():
                self.cache = self._fresh()

    def _fresh(self) -> RowCache:
        return RowCache(int(getattr(self.config, "num_hidden_layers", None) or 0))

    def scratch(self, graph: Graph | None) -> Rows:
        """Empty rows of the same model, with or without its compiled passes."""
        rows = type(self)(self.model, traits=self.traits)
        rows.together, rows.guided, rows.graph = self.together, self.guided, graph
        return rows

    def front(self, keys: Sequence[int]) -> list[int]:
        """Move the rows of `keys` to the front, so that a pass uses one slice of the cache.

        Returns the row of each key.
        """
        n = len(keys)
        if n < len(self.keys):
            wanted = set(keys)
            spare = [row for row in range(n) if self.keys[row] not in wanted]
            for row in range(n, len(self.keys)):
                if self.keys[row] in wanted:
                    self._exchange(spare.pop(), row)
        return [self.keys.index(key) for key in keys]

    def share(self, row: int, other: int, length: int) -> None:
        """Copy the first `length` tokens of another row, whose text must be the same there."""
        self.cache.copy_row(other, row, length)
        self.held[row] = length

    def settle(self, row: int, length: int) -> None:
        """Roll a row back to its first `length` tokens, of which none is a guess any more."""
        self.held[row] = length

    def feed(
        self,
        first: int,
        texts: Sequence[Sequence[int]],
        keep: int,
        *,
        slots: int = 0,
        trees: Mapping[int, Sequence[int]] | None = None,
        model: Any = None,
        lengths: Sequence[int] = (),
        guesses: bool = False,
    ) -> Tensor:
        """Run a forward pass on `texts[i]` after the tokens in row `first + i`; call it under
        `torch.inference_mode`.

        The last tokens of `texts[i]` are a tree if `trees[i]` has their parents (-1 = the token before them):
        each has a slot of its own, its depth determines its position id, and it attends to its ancestors
        only. If there are more parents than tokens, the tokens extend a tree whose first nodes are the last
        in the row.

        Returns the logits at the last `keep` of the pass's positions, shape (rows, keep, vocabulary) on the
        model's device; rows are padded on the right, so row i's own last position is `len(texts[i]) - 1`
        counted from `width - keep`. `slots` is the length that the texts may grow to. `model`, perhaps some
        of its layers, runs in place of the rows' own; other layers then store nothing. With `lengths`, each
        text has the rotary frequencies of a text of so many tokens. `guesses`: the texts end in tokens that
        may be taken back.
        """
        if len(texts) > 1 and not (self.together and len(set(map(self.rope.regime, lengths))) < 2):
            return self._apart(first, texts, keep, trees or {}, lengths, slots=slots, model=model)
        width = len(texts[0]) if len(texts) == 1 else max(map(len, texts))
        starts = self.held[first : first + len(texts)]
        more = 0
        if lengths and self.guided:
            more = self._lengthened(max(lengths), max(starts) + width)
            width += more
        ids = self._ids(texts, width)
        even = len(starts) == 1 or starts.count(starts[0]) == len(starts)
        total = self.cache.schedule(
            first, starts, width, even=even, rows=len(self.keys), slots=slots, tree=bool(trees)
        )
        named: dict[str, Any] = {}
        if self.keeps:
            named["logits_to_keep"] = last(keep + more, width, indices=self._copies)
        if trees:
            places = self._branches(starts, width, total, even, [len(t) for t in texts], trees)
            named["position_ids"], named["attention_mask"] = places
        else:
            named |= self._told(ids, starts, total, even)
        if more:
            at = named["position_ids"] = named["position_ids"].expand(len(texts), -1).clone()
            for i, text in enumerate(texts):
                at[i, len(text) :] = max(lengths) - 1
        logits = self._forward(ids, keep + more, named, model)
        if self.cache.counted:
            self._counted(bool(trees))
            return self._apart(first, texts, keep, {}, lengths, slots=slots, model=model)
        for i, text in enumerate(texts):
            self.held[first + i] += len(text)
        return logits[:, -keep - more : -more or None]

    def _told(self, ids: Tensor, starts: list[int], total: int, even: bool) -> dict[str, Any]:
        """What the model is told about the positions and masks of a pass of chains."""
        if self.guided:
            at, mask = self._places(starts, ids.shape[1], total, even)
            return {"position_ids": at, "attention_mask": mask}
        return {"attention_mask": ids.new_ones(1, total)} if self._masked else {}

    def _forward(self, ids: Tensor, keep: int, named: dict[str, Any], model: Any) -> Tensor:
        """Logits of at least the last `keep` positions, from the compiled graph if there is one.

        Hooks on the model's modules and other models need an eager pass.
        """
        if self.passes is not None:
            self.passes.poll()
        start = perf_counter()
        logits: Tensor
        if self.graph is not None and model is None and not self.watchers:
            logits = self.graph(self, ids, named, keep)
        else:
            with shared_heads(), self._evaluating():
                named[self.cache_name] = self.cache
                logits = (model or self.model)(input_ids=ids, use_cache=True, **named).logits
        self.seconds += perf_counter() - start
        return logits

    def _evaluating(self) -> AbstractContextManager[None]:
        """No dropout in a pass; what the model's own decoding would write with it is no text to reproduce."""
        return evaluating(self.model) if self.training or self.model.training else nullcontext()

    def _apart(
        self,
        first: int,
        texts: Sequence[Sequence[int]],
        keep: int,
        trees: Any,
        lengths: Sequence[int],
        **more: Any,
    ) -> Tensor:
        """`feed` with one pass per text; watchers are left as after a single pass."""
        before = max(map(len, texts)) - keep
        parts = []
        for i, text in enumerate(texts):
            own, tree = len(text) - before, {0: trees[i]} if i in trees else None
            said = self.feed(first + i, [text], own, trees=tree, lengths=lengths[i : i + 1], **more)
            parts.append(said[0])
            for watcher in self.watchers:
                watcher.set_aside(i, 0, len(text))
        for watcher in self.watchers:
            watcher.join()
        return pad_sequence(parts, batch_first=True)

    def _counted(self, tree: bool) -> None:
        """From now on read texts one at a time, since a layer counts its positions by the cache's length."""
        self.cache.counted = False
        if tree:
            raise UserError(
                f"{type(self.model).__name__} counts positions by the length of its cache, so it cannot read "
                "a tree of drafted tokens: use a policy that drafts chains"
            )
        self.together = False

    def _lengthened(self, length: int, total: int) -> int:
        """How many columns a pass of `total` positions needs in addition to get the frequencies of a text of
        `length` tokens: one masked column at its end if they would differ."""
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

    def _branches(
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
        kin, places, older = grown(starts, width, lengths, trees)
        here, slots = self._tensor(places), self.positions[:total]
        columns = at[:, None, None].expand(-1, -1, width, -1)
        unseen = (slots > at[:, None, :, None]).scatter(3, columns, ~self._tensor(kin)[:, None])
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
            keys = self.keys[self.cache.plan.first : self.cache.plan.last]
            prompts = self._tensor([self.prompts.get(key, 0) for key in keys])[:, None, None, None]
        return self.masks.made(unseen, places, here, prompts)

    def _ids(self, texts: Sequence[Sequence[int]], width: int) -> Tensor:
        if len(texts) > 1 or width > len(texts[0]):
            return self._tensor([[*t, *(0,) * (width - len(t))] for t in texts])
        return self.one.fill_(texts[0][0]) if width == 1 else self._tensor(texts)

    def _tensor(self, numbers: Any) -> Tensor:
        """Integers on the device, without waiting; NumPy converts small nested lists faster."""
        return torch.from_numpy(np.asarray(numbers)).to(self.device, non_blocking=True)

    def _exchange(self, a: int, b: int) -> None:
        if self.keys[a] == FREE:
            self.cache.copy_row(b, a, self.held[b])
        else:
            self.cache.swap_rows(a, b, max(self.held[a], self.held[b]))
        for column in (self.keys, self.held):
            column[a], column[b] = column[b], column[a]
