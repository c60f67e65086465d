"""Runs a model whose layers keep states that cannot rewind."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...core.passes import PassInfo
from ...errors import UserError
from ..cache_names import NAMES, cache_in, name_for
from ..limits import freed, limited
from ..modes import attributes
from .cache import RowCache
from .executors.eager import Eager
from .passes import PassInput, PassOutput, PreparedPass, join_infos, join_pieces, join_states
from .recurrent import (
    BROKEN,
    Place,
    RowState,
    StateCache,
    in_modules,
    merged,
    nth,
    put,
    states_of,
    taken,
)
from .runner import ModelRunner
from .traits import Traits

MOST = 8  # tokens that are read again together with a draft; more are read in a pass of their own before it
PIECE = 256  # tokens that are read again in one such pass, which bounds the memory of activations
CHUNK = 16  # least tokens of a state-space layer's chunk: kernels for GPUs have no smaller ones


class StateRunner(ModelRunner):
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
        self.carried, self.steps, self.free = carried, steps, free
        self.box = SimpleNamespace(held=None)  # what the latest pass returned, to be handed to the next
        self.limits = limited(model) if free else {}
        self.least = 2 if free else 1  # in a pass over one token of a prompt it would not be limited
        self.states: list[RowState] = []
        self.reread = 0  # tokens that were read again
        self.chunked = chunk_sizes(model)
        super().__init__(model, traits=traits)
        self._blank = torch.empty(1, 0, int(self.config.vocab_size), device=self.device, dtype=self.dtype)
        named = inspect.signature(model.forward).parameters
        self.cache_name = name_for(model, "")  # "": it takes none
        self._placed = "position_ids" in named
        self._own = [Place(self.box, {"held": None})] if carried else []

    def _eager(self) -> Eager:
        return Carrying()

    @torch.inference_mode()
    def find_states(self) -> None:
        """Find states in the model's modules, if a pass left none in the cache."""
        scratch = type(self)(self.model, traits=self.traits)
        scratch.open(0)
        scratch.forward(PassInput(0, [[0, 0]], 1))
        if not any(layer.has_previous_state[0] for layer in states_of(scratch.cache)):
            self._own = in_modules(self.model)

    def _new_cache(self) -> RowCache:
        cache = StateCache(self.config, self.depth, self.cached_lengths)
        self._layers = [Place(layer, layer.fresh) for layer in states_of(cache)]
        return cache

    @property
    def places(self) -> list[Place]:
        """Where the model looks for the states of the row that is read."""
        return [*self._layers, *self._own]

    @property
    def bytes(self) -> int:
        return sum(state.bytes for state in self.states)

    def open(self, request_id: int) -> None:
        super().open(request_id)
        if len(self.states) < len(self.request_ids):
            self.states.append(RowState())

    def close(self, request_id: int) -> None:
        if request_id in self.request_ids:
            self.states[self.request_ids.index(request_id)] = RowState()
        super().close(request_id)
        del self.states[len(self.request_ids) :]

    def share(self, row: int, other: int, length: int) -> None:
        """Copy at most the first `length` tokens of another row, as far as its states allow."""
        self.states[row] = part = self.states[other].part(length)
        super().share(row, other, part.at)

    def truncate(self, row: int, length: int) -> None:
        """Roll a row back to its first `length` tokens, which will not be taken back as guesses are."""
        super().truncate(row, length)
        state = self.states[row]
        state.guessed &= state.at != length

    def _exchange(self, a: int, b: int) -> None:
        super()._exchange(a, b)
        self.states[a], self.states[b] = self.states[b], self.states[a]

    def _forward(self, given: PassInput) -> PassOutput:
        """Read chains; an empty text is not read, and its logits are none."""
        if given.parents or given.model is not None:
            raise UserError(
                f"{type(self.model).__name__} keeps a state that cannot rewind, so it cannot read a tree of "
                "drafted tokens, nor with its first layers alone: use a policy that drafts chains"
            )
        texts, before = given.tokens, self.reread
        if len(texts) > 1:
            output = self._read_groups(given)
        else:
            output = self._read(given) if texts[0] else PassOutput(self._blank, {}, PassInfo("eager"))
        output.info.reread = self.reread - before
        return output

    def _read_groups(self, given: PassInput) -> PassOutput:
        texts = given.tokens
        before = max(map(len, texts)) - given.logits_to_keep
        logits, rows = [self._blank[0]] * len(texts), list[tuple[PassOutput | None, int, int]]()
        infos = []
        for group in self._groups(given.row, texts):
            members = [texts[i] for i in group]
            kept = [len(text) - before for text in members]
            output = None
            if members[0]:
                output = self._read(
                    replace(given, row=given.row + group[0], tokens=members, logits_to_keep=max(kept))
                )
                infos.append(output.info)
            for at, i in enumerate(group):
                if output is not None:
                    logits[i] = output.logits[at, output.logits.shape[1] - kept[at] :]
                rows.append((output, at, len(members[at])))
        info = join_infos(infos or [PassInfo("eager")])
        return PassOutput(pad_sequence(logits, batch_first=True), join_states(rows), info)

    def _groups(self, first: int, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The texts that share a pass: neighbours of equal width, of which none has to be read apart."""
        groups: list[list[int]] = []
        latest = 0
        for i, text in enumerate(texts):
            state = self.states[first + i]
            again = len(state.rewind(self.cached_lengths[first + i])) if text else 0
            width = again + len(text) if self.together and text and state.at and again <= MOST else 0
            if width and width == latest:
                groups[-1].append(i)
            else:
                groups.append([i])
            latest = width
        return groups

    def _read(self, given: PassInput) -> PassOutput:
        """Read texts in one pass, after the tokens that have to be read again, which makes them equally wide;
        a single text may need more passes."""
        first, texts = given.row, given.tokens
        rows = slice(first, first + len(texts))
        states, lengths = self.states[rows], self.cached_lengths[rows]
        try:
            again = [state.rewind(length) for state, length in zip(states, lengths, strict=True)]
            self.reread += sum(map(len, again))
            while len(again[0]) > MOST:
                self._pass(replace(given, tokens=[again[0][:PIECE]], logits_to_keep=1))
                again[0] = again[0][PIECE:]
            if given.is_guess:
                for state in states:
                    state.save()
            ids = [[*old, *text] for old, text in zip(again, texts, strict=True)]
            output = self._pass(replace(given, tokens=ids))
        except BaseException:
            self.cached_lengths[rows] = lengths
            raise
        if len(texts) == 1 and again[0]:
            kept = len(texts[0])
            output.hidden_states = {k: part[:, -kept:] for k, part in output.hidden_states.items()}
        for state, text in zip(states, texts, strict=True):
            state.tokens += text
            state.guessed |= given.is_guess
        return output

    def _pass(self, given: PassInput) -> PassOutput:
        ids = given.tokens
        if not (self.steps and self.states[given.row].at and len(ids[0]) > 1):
            return self._once(given)
        steps = [
            self._once(replace(given, tokens=[row[step : step + 1] for row in ids], logits_to_keep=1))
            for step in range(len(ids[0]))
        ]
        output = join_pieces(steps)
        output.logits = output.logits[:, -given.logits_to_keep :]
        return output

    def _once(self, given: PassInput) -> PassOutput:
        first, width = given.row, len(given.tokens[0])
        states, places = self.states[first : first + len(given.tokens)], self.places
        put(places, states[0].live if len(states) == 1 else merged([state.live for state in states]))
        reached = [state.at + width for state in states]
        for row, state in enumerate(states, first):
            self.cached_lengths[row] = state.at
            state.at = BROKEN
        with short_chunks(self.chunked, width), self._freed(first, reached, width):
            output = super()._forward(replace(given, rope_lengths=(), is_guess=False))
        after = taken(places)
        for row, state in enumerate(states):
            state.live = after if len(states) == 1 else nth(after, row)
            state.at = reached[row]
        return output

    def _freed(self, first: int, reached: Sequence[int], width: int) -> AbstractContextManager[None]:
        """Limits for the tokens of prompts alone; everywhere in a text whose prompt is not known."""
        if not self.limits:
            return nullcontext()
        ids = self.request_ids[first : first + len(reached)]
        inside = [self.prompts.get(one, end) - end + width for one, end in zip(ids, reached, strict=True)]
        return freed(self.limits, inside, width, self._blank)

    def _arguments(self, ids: Tensor, starts: list[int], total: int, even: bool) -> dict[str, Any]:
        """Positions, so that the model makes the masks of all kinds of layers; masks too where rows differ in
        length, which only a mask of each row can tell; or a mask of ones alone."""
        masked = not even and any(layer.is_initialized for layer in self.cache.rows)
        if masked or not self.guided:
            return super()._arguments(ids, starts, total, even)
        return {"position_ids": self._slots(starts, ids.shape[1], total, even)} if self._placed else {}


class Carrying(Eager):
    """Eager passes of a model that may hand its states from one pass to the next."""

    def _call(self, runner: Any, prepared: PreparedPass) -> Any:
        arguments = prepared.arguments
        if not runner.carried and runner.cache_name:
            arguments[runner.cache_name] = runner.cache
        elif runner.box.held is not None:
            arguments[runner.carried] = runner.box.held
        with self._evaluating(runner):
            out = runner.model(input_ids=prepared.ids, use_cache=True, **arguments)
        if runner.carried:
            runner.box.held = cache_in(out) if runner.carried in NAMES else out[runner.carried]
        runner._blank = out.logits.new_empty(1, 0, out.logits.shape[-1])  # a slice would keep them all
        return out


def chunk_sizes(model: nn.Module) -> dict[Any, int]:
    """Return the `chunk_size` of the modules that compute a pass in chunks."""
    sizes: dict[Any, Any] = {module: getattr(module, "chunk_size", None) for module in model.modules()}
    return {module: size for module, size in sizes.items() if type(size) is int and size > CHUNK}


def short_chunks(modules: dict[Any, int], width: int) -> AbstractContextManager[None]:
    """Within it, chunks are no longer than a pass of `width` tokens needs.

    The recurrence does not depend on how it is cut; a few tokens padded to a chunk of 256 are mostly padding.
    """
    size = max(CHUNK, 1 << (width - 1).bit_length())
    return attributes([(module, "chunk_size", min(size, own)) for module, own in modules.items()])
