"""The target as a teacher: its states along its own answers, computed once if they are wanted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .losses import padded
from .settings import Training
from .steps import in_half
from .texts import Answer

GROUP = 16  # answers in one pass of what is kept


@dataclass(frozen=True, slots=True)
class Read:
    """Some answers as the target reads them.

    `features` are its hidden states of the layers asked for beside each other, shape (answers, length, layers
    * width), `states` the last ones after the final norm, (answers, length, width), `ids` the tokens and
    `guessed` the places whose next token belongs to the answer, both (answers, length). States of padding
    are 0.
    """

    ids: Tensor
    guessed: Tensor
    features: Tensor
    states: Tensor


class Teacher:
    """Reads answers with the target; those of `again` only once, where they fit into `room` bytes of `dtype`.

    What is kept is computed in groups that depend on `again` alone, never on the order of the steps: a run
    that goes on from a checkpoint learns from the very same numbers.
    """

    def __init__(
        self,
        target: Any,
        layers: Sequence[int],
        again: Sequence[Answer] = (),
        room: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.target, self.layers = target, tuple(layers)
        self.dtype = dtype or target.dtype
        order = sorted(dict.fromkeys(again), key=lambda one: len(one.text))
        width = sum(len(one.text) for one in order) * int(target.get_output_embeddings().weight.shape[1])
        size = width * (1 + len(self._others)) * self.dtype.itemsize
        self._groups = [order[at : at + GROUP] for at in range(0, len(order), GROUP)] if size <= room else []
        self._group = {one: k for k, group in enumerate(self._groups) for one in group}
        self._kept: dict[Answer, Tensor] = {}

    @property
    def _others(self) -> tuple[int, ...]:
        """The layers beside the last."""
        return () if self.layers == (-1,) else self.layers

    @torch.no_grad()
    def read(self, answers: Sequence[Answer], context: int = 0) -> Read:
        """The states along some answers; with a `context`, of the prompts' last so many tokens only."""
        rows = self._rows(answers)
        if context:
            rows = [row[max(0, len(a.prompt) - context) :] for row, a in zip(rows, answers, strict=True)]
            answers = [replace(a, prompt=a.prompt[-context:]) for a in answers]
        ids, guessed = _places(answers, self.target.device)
        states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        width = states.shape[-1] // (1 + len(self._others))
        last = states[..., -width:]
        return Read(ids, guessed, states[..., :-width] if self._others else last, last)

    @torch.no_grad()
    def logits(self, answers: Sequence[Answer]) -> Tensor:
        """The target's logits before each token of some answers, shape (tokens, vocabulary)."""
        if self._group and self._plain:
            seen = self.read(answers)
            found: Tensor = self.target.get_output_embeddings()(seen.states[seen.guessed])
            return found
        ids, guessed, first = padded(answers, self.target.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        found = self.target(ids, logits_to_keep=keep, use_cache=False).logits[guessed]
        return found

    @property
    def _plain(self) -> bool:
        """Whether nothing comes after the output layer, such as a bound on the logits."""
        if not hasattr(self, "_alone"):
            ids = torch.tensor([self._groups[0][0].text[:8]], device=self.target.device)
            out = self.target(ids, output_hidden_states=True, use_cache=False)
            bare = self.target.get_output_embeddings()(out.hidden_states[-1])
            self._alone = bool(torch.allclose(bare, out.logits, rtol=1e-3, atol=1e-3))
        return self._alone

    def _rows(self, answers: Sequence[Answer]) -> list[Tensor]:
        """Each answer's states, shape (length, width)."""
        if not all(one in self._group for one in answers):
            return self._pass(answers)
        for one in answers:
            if one not in self._kept:
                group = self._groups[self._group[one]]
                self._kept |= zip(group, (row.clone() for row in self._pass(group)), strict=True)
        return [self._kept[one] for one in answers]

    def _pass(self, answers: Sequence[Answer]) -> list[Tensor]:
        ids, _ = _places(answers, self.target.device)
        out = self.target(ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        layers = (*self._others, -1)
        states = torch.cat([out.hidden_states[k].to(self.dtype) for k in layers], dim=-1)
        return [row[: len(one.text)] for row, one in zip(states, answers, strict=True)]


def teacher(run: Training, target: Any, answers: Sequence[Answer], layers: Sequence[int] = ()) -> Teacher:
    """The teacher of a training: it keeps its states if the steps go through the answers more than once."""
    again = answers if run.steps * run.batch > len(answers) else ()
    return Teacher(target, layers, again, run.remember * 2**30, torch.bfloat16 if in_half(run) else None)


def _places(answers: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor]:
    ids, guessed, first = padded(answers, device)
    return ids, torch.nn.functional.pad(guessed, (first, 1))
