"""The target as a teacher: its hidden states along its own answers, computed once if they are used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UserError
from .losses import padded
from .numerics import in_half
from .settings import Training
from .steps import accelerate
from .texts import Answer, Tell

if TYPE_CHECKING:
    from .folder import Material

GROUP = 16  # answers in one pass when states are stored


@dataclass(frozen=True, slots=True)
class Read:
    """Some answers as the target reads them.

    `features` are its hidden states of the requested layers, concatenated, shape (answers, length, layers *
    width), `states` the last ones after the final norm, (answers, length, width), `ids` the tokens and
    `guessed` the positions whose next token belongs to the answer, both (answers, length). States of padding
    are 0.
    """

    ids: Tensor
    guessed: Tensor
    features: Tensor
    states: Tensor


class Teacher:
    """Reads answers with the target, in `dtype`; states that were `kept` are not computed again."""

    def __init__(self, target: Any, layers: Sequence[int] = (), dtype: torch.dtype | None = None) -> None:
        self.target, self.dtype = target, dtype or target.dtype
        self.others = () if tuple(layers) == (-1,) else tuple(layers)  # the layers other than the last
        self.kept: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def read(self, answers: Sequence[Answer], context: int = 0) -> Read:
        """The states along some answers; with `context`, only that many last tokens of each prompt."""
        rows = self._rows(answers)
        if context:
            rows = [row[max(0, len(a.prompt) - context) :] for row, a in zip(rows, answers, strict=True)]
            answers = [replace(a, prompt=a.prompt[-context:]) for a in answers]
        ids, guessed = _places(answers, self.target.device)
        states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(ids.device)
        width = states.shape[-1] // (1 + len(self.others))
        last = states[..., -width:]
        return Read(ids, guessed, states[..., :-width] if self.others else last, last)

    @torch.no_grad()
    def logits(self, answers: Sequence[Answer]) -> Tensor:
        """The target's logits before each token of some answers, shape (tokens, vocabulary)."""
        if all(one.text in self.kept for one in answers) and self._plain:
            seen = self.read(answers)
            found: Tensor = self.target.get_output_embeddings()(seen.states[seen.guessed])
            return found
        ids, guessed, first = padded(answers, self.target.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        found = self.target(ids, logits_to_keep=keep, use_cache=False).logits[guessed]
        return found

    @torch.no_grad()
    def keep(self, answers: Sequence[Answer], file: Path, tell: Tell) -> None:
        """Compute the states of answers once and store them in a file, which later trainings share.

        Groups depend on the answers alone, so every run learns from identical numbers. A file of other
        answers is overwritten.

        Raises:
            UserError: the file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file, save_file

        order = sorted({one.text: one for one in answers}.values(), key=lambda one: (len(one.text), one.text))
        about = {"format": "draftwise-states", "of": self._said(order)}
        if _about(file) != about:
            states = torch.empty(sum(len(one.text) for one in order), self._width, dtype=self.dtype)
            done = 0
            for at in range(0, len(order), GROUP):
                tell("Reading answers", at, len(order))
                for row in self._pass(order[at : at + GROUP]):
                    states[done : done + len(row)] = row
                    done += len(row)
            part = file.with_name(f"{file.name}.part")
            try:
                save_file({"states": states}, part, about)
                part.replace(file)
            except (OSError, SafetensorError) as error:
                part.unlink(missing_ok=True)
                said = f"{states.nbytes / 1e6:.0f} MB of states to {file}: {str(error).splitlines()[0]}"
                raise UserError(
                    f"cannot write {said}; make room, or train with --remember 0 to another --out"
                ) from error
            tell("Reading answers", len(order), len(order))
        states = load_file(file)["states"]
        ends = accumulate(len(one.text) for one in order)
        self.kept = {
            one.text: states[end - len(one.text) : end] for one, end in zip(order, ends, strict=True)
        }

    def size(self, answers: Sequence[Answer]) -> int:
        """The size of these answers' states in bytes."""
        return sum(map(len, {one.text for one in answers})) * self._width * self.dtype.itemsize

    @property
    def _width(self) -> int:
        return int(self.target.get_output_embeddings().weight.shape[1]) * (1 + len(self.others))

    def _said(self, order: Sequence[Answer]) -> str:
        """What determines the states."""
        from ..models.fingerprints import model_fingerprint

        texts = sha256(str([one.text for one in order]).encode()).hexdigest()
        return f"{model_fingerprint(self.target)} {self.others} {self.dtype} {texts}"

    @cached_property
    def _plain(self) -> bool:
        """Whether nothing follows the output layer, such as a bound on the logits."""
        ids = torch.tensor([next(iter(self.kept))[:8]], device=self.target.device)
        out = self.target(ids, output_hidden_states=True, use_cache=False)
        bare = self.target.get_output_embeddings()(out.hidden_states[-1])
        return bool(torch.allclose(bare, out.logits, rtol=1e-3, atol=1e-3))

    def _rows(self, answers: Sequence[Answer]) -> list[Tensor]:
        """Each answer's states, shape (length, width)."""
        if all(one.text in self.kept for one in answers):
            return [self.kept[one.text] for one in answers]
        return self._pass(answers)

    def _pass(self, answers: Sequence[Answer]) -> list[Tensor]:
        ids, _ = _places(answers, self.target.device)
        out = self.target(ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        states = torch.cat([out.hidden_states[k].to(self.dtype) for k in (*self.others, -1)], dim=-1)
        return [row[: len(one.text)] for row, one in zip(states, answers, strict=True)]


def teacher(run: Training, material: Material, tell: Tell, layers: Sequence[int] = ()) -> Teacher:
    """The teacher of a training: it stores its states if the answers are used more than once."""
    made = Teacher(material.target, layers, torch.bfloat16 if in_half(run) else None)
    every = [*material.answers, *material.held_out]
    again = run.minutes > 0 or run.steps * run.batch > len(every)
    if again and made.size(every) <= run.remember * 2**30:
        name = "-".join(["states", *map(str, made.others)])
        with accelerate(run).autocast():
            made.keep(every, material.file.with_suffix(f".{name}.safetensors"), tell)
    return made


def _places(answers: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor]:
    ids, guessed, first = padded(answers, device)
    return ids, torch.nn.functional.pad(guessed, (first, 1))


def _about(file: Path) -> dict[str, str]:
    """The header of a file of states; empty if it is another file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except (OSError, SafetensorError):
        return {}
