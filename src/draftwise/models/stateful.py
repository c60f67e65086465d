"""Runs a model whose layers keep states that cannot rewind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import UserError
from .cache import RowCache
from .cache_names import NAMES, cache_in, name_for
from .chunks import chunked, short
from .limits import freed, limited
from .recurrent import (
    BROKEN,
    Box,
    Place,
    RowState,
    StateCache,
    in_modules,
    merged,
    nth,
    place_of,
    put,
    states_of,
    taken,
)
from .runner import Rows
from .traits import Traits

MOST = 8  # tokens that are read again together with a draft; more are read in a pass of their own before it
PIECE = 256  # tokens that are read again in one such pass, which bounds the memory of activations


class StateRows(Rows):
    """Texts of a model with states, where padding must never enter a state.

    Neighbouring texts whose passes have equal width share one if the model reads them `together`; the others
    are read one at a time.

    A draft may be taken back, and a state may not. So a snapshot of the states is taken before a pass with
    guesses. If all of them stay, so do the states. After a rejection the snapshot takes their place, and the
    tokens that it has not read are read again together with the next ones: one longer pass, not one more.
    Keys and values beside the states roll back as in all rows.

    `carried` names the argument in which the model takes back an object that the pass before returned, if its
    states are there. With `steps`, every token after a text's first pass has a pass of its own, for models
    that ignore their states in longer ones. With `free`, the model's limits of a token's step (`limits`) hold
    for the prompt alone.
    """

    stateful = True

    def __init__(
        self,
        model: Any,
        *,
        traits: Traits | None = None,
        carried: str = "",
        steps: bool = False,
        free: bool = False,
    ) -> None:
        self.carried, self.steps, self.free, self.box = carried, steps, free, Box()
        self.limits = limited(model) if free else {}
        self.least = 2 if free else 1  # in a pass over one token of a prompt it would not be limited
        self.states: list[RowState] = []
        self.reread = 0  # tokens that were read again
        self.chunked = chunked(model)
        super().__init__(model, traits=traits)
        self._blank = torch.empty(1, 0, int(self.config.vocab_size), device=self.device, dtype=self.dtype)
        named = inspect.signature(model.forward).parameters
        self.cache_name = name_for(model, "")  # "": it takes none
        self._placed = "position_ids" in named
        self._own = [Place(self.box, ("held",), {"held": None})] if carried else []

    @torch.inference_mode()
    def look(self) -> None:
        """Find states in the model's modules, if a pass left none in the cache."""
        scratch = type(self)(self.model, traits=self.traits)
        scratch.open(0)
        scratch.feed(0, [[0, 0]], 1)
        if not any(layer.has_previous_state[0] for layer in states_of(scratch.cache)):
            self._own = in_modules(self.model)

    def _fresh(self) -> RowCache:
        cache = StateCache(self.config, int(getattr(self.config, "num_hidden_layers", None) or 0))
        self._layers = [place_of(layer) for layer in states_of(cache)]
        return cache

    @property
    def places(self) -> list[Place]:
        """Where the model looks for the states of the row that is read."""
        return [*self._layers, *self._own]

    @property
    def bytes(self) -> int:
        """Memory of all states and snapshots, one of each for every row."""
        return sum(state.bytes for state in self.states)

    def open(self, key: int) -> None:
        """Add an empty row, reusing a freed one if there is any."""
        super().open(key)
        if len(self.states) < len(self.keys):
            self.states.append(RowState())

    def close(self, key: int) -> None:
        """Free a row and its states."""
        if key in self.keys:
            self.states[self.keys.index(key)] = RowState()
        super().close(key)
        del self.states[len(self.keys) :]

    def share(self, row: int, other: int, length: int) -> None:
        """Copy at most the first `length` tokens of another row, as far as its states allow."""
        self.states[row] = part = self.states[other].part(length)
        super().share(row, other, part.at)

    def settle(self, row: int, length: int) -> None:
        """Roll a row back to its first `length` tokens, which will not be taken back as guesses are."""
        super().settle(row, length)
        state = self.states[row]
        state.guessed &= state.at != length

    def _exchange(self, a: int, b: int) -> None:
        super()._exchange(a, b)
        self.states[a], self.states[b] = self.states[b], self.states[a]

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
        """`Rows.feed` for chains; an empty text is not read, and its logits are none."""
        if trees or model is not None:
            raise UserError(
                f"{type(self.model).__name__} keeps a state that cannot rewind, so it cannot read a tree of "
                "drafted tokens, nor with its first layers alone: use a policy that drafts chains"
            )
        if len(texts) == 1:
            return self._read(first, texts, keep, slots, guesses) if texts[0] else self._blank
        before = max(map(len, texts)) - keep
        parts = [self._blank[0]] * len(texts)
        for group in self._groups(first, texts):
            members = [texts[i] for i in group]
            own = [len(text) - before for text in members]
            said = self._read(first + group[0], members, max(own), slots, guesses) if members[0] else None
            for at, i in enumerate(group):
                if said is not None:
                    parts[i] = said[at, said.shape[1] - own[at] :]
                for watcher in self.watchers:
                    watcher.set_aside(i, at, len(members[at]))
        for watcher in self.watchers:
            watcher.join()
        return pad_sequence(parts, batch_first=True)

    def _groups(self, first: int, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The texts that share a pass: neighbours of equal width, of which none has to be read apart."""
        groups: list[list[int]] = []
        latest = 0
        for i, text in enumerate(texts):
            state = self.states[first + i]
            again = len(state.rewind(self.held[first + i])) if text else 0
            width = again + len(text) if self.together and text and state.at and again <= MOST else 0
            if width and width == latest:
                groups[-1].append(i)
            else:
                groups.append([i])
            latest = width
        return groups

    def _read(
        self, first: int, texts: Sequence[Sequence[int]], keep: int, slots: int, guesses: bool
    ) -> Tensor:
        """Read texts in one pass, after the tokens that have to be read again, which makes them equally wide;
        a single text may need more passes."""
        states, held = self.states[first : first + len(texts)], self.held[first : first + len(texts)]
        try:
            again = [state.rewind(length) for state, length in zip(states, held, strict=True)]
            self.reread += sum(map(len, again))
            while len(again[0]) > MOST:
                self._pass(first, [again[0][:PIECE]], 1, slots)
                again[0] = again[0][PIECE:]
            if guesses:
                for state in states:
                    state.save()
            ids = [[*old, *text] for old, text in zip(again, texts, strict=True)]
            logits = self._pass(first, ids, keep, slots)
        except BaseException:
            self.held[first : first + len(texts)] = held
            raise
        if len(texts) == 1 and again[0]:
            for watcher in self.watchers:
                watcher.trim(len(texts[0]))
        for state, text in zip(states, texts, strict=True):
            state.tokens += text
            state.guessed |= guesses
        return logits

    def _pass(self, first: int, ids: Sequence[Sequence[int]], keep: int, slots: int) -> Tensor:
        """Read tokens after those that the rows' states have read; returns the last `keep` logits."""
        if not (self.steps and self.states[first].at and len(ids[0]) > 1):
            return self._once(first, ids, keep, slots)
        said = []
        for step in range(len(ids[0])):
            said.append(self._once(first, [row[step : step + 1] for row in ids], 1, slots))
            for watcher in self.watchers:
                watcher.append(step)
        return torch.cat(said[-keep:], dim=1)

    def _once(self, first: int, ids: Sequence[Sequence[int]], keep: int, slots: int) -> Tensor:
        states, places = self.states[first : first + len(ids)], self.places
        put(places, states[0].live if len(ids) == 1 else merged([state.live for state in states]))
        reached = [state.at + len(ids[0]) for state in states]
        for row, state in enumerate(states, first):
            self.held[row] = state.at
            state.at = BROKEN
        with short(self.chunked, len(ids[0])), self._freed(first, reached, len(ids[0])):
            logits = super().feed(first, ids, keep, slots=slots)
        after = taken(places)
        for row, state in enumerate(states):
            state.live = after if len(ids) == 1 else nth(after, row)
            state.at = reached[row]
        return logits

    def _freed(self, first: int, reached: Sequence[int], width: int) -> AbstractContextManager[None]:
        """Limits for the tokens of prompts alone; everywhere in a text whose prompt is not known."""
        if not self.limits:
            return nullcontext()
        keys = self.keys[first : first + len(reached)]
        inside = [self.prompts.get(key, end) - end + width for key, end in zip(keys, reached, strict=True)]
        return freed(self.limits, inside, width, self._blank)

    def _told(self, ids: Tensor, starts: list[int], total: int, even: bool) -> dict[str, Any]:
        """Positions, so that the model makes the masks of all kinds of layers; masks too where rows differ in
        length, which only a mask of each row can tell; or a mask of ones alone."""
        masked = not even and any(layer.is_initialized for layer in self.cache.rows)
        if masked or not self.guided:
            return super()._told(ids, starts, total, even)
        return {"position_ids": self._slots(starts, ids.shape[1], total, even)} if self._placed else {}

    def _forward(self, ids: Tensor, keep: int, named: dict[str, Any], model: Any) -> Tensor:
        """Logits of at least the last `keep` positions, always from an eager pass."""
        start = perf_counter()
        if not self.carried and self.cache_name:
            named[self.cache_name] = self.cache
        elif self.box.held is not None:
            named[self.carried] = self.box.held
        with self._evaluating():
            out = self.model(input_ids=ids, use_cache=True, **named)
        if self.carried:
            self.box.held = cache_in(out) if self.carried in NAMES else out[self.carried]
        logits: Tensor = out.logits
        self._blank = logits[:, :0]
        self.seconds += perf_counter() - start
        return logits
