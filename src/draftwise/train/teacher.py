"""The target as a teacher: its hidden states along its own answers, and distances of a drafter from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..models.fingerprints import model_fingerprint
from .folder import Material
from .settings import Training
from .steps import accelerate, in_half
from .texts import Answer, Tell


def distance(loss: str, drafter: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
    """The mean of a loss over tokens, from raw logits at temperature 1, in nats.

    `ce` is -ln q(token); `kl` is sum p ln(p / q); `tv` is 1 - sum min(p, q), the probability that a sampled
    draft is rejected. Shapes: drafter and target (tokens, vocabulary), tokens (tokens).
    """
    if loss == "ce" or target is None:
        return F.cross_entropy(drafter.float(), tokens)
    logq = drafter.float().log_softmax(-1)
    if loss == "kl":
        return F.kl_div(logq, target.float().log_softmax(-1), reduction="batchmean", log_target=True)
    return 1.0 - torch.minimum(logq.exp(), target.float().softmax(-1)).sum(-1).mean()


def agreement(drafter: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """For each token, the overlap sum min(p, q), and whether both have the same most likely token; shape
    (tokens).
    """
    p, q = target.float().softmax(-1), drafter.float().softmax(-1)
    return torch.minimum(p, q).sum(-1), (p.argmax(-1) == q.argmax(-1)).float()


def padded(batch: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """A batch of texts, padded on the right, where causal attention never sees the padding.

    Returns the ids, shape (answers, longest); which of the positions from `first` on are followed by a token
    of the answer, shape (answers, longest - first - 1); and `first`.
    """
    longest = max(len(one.text) for one in batch)
    first = min(len(one.prompt) for one in batch) - 1
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    predicted = torch.zeros(len(batch), longest - first - 1, dtype=torch.bool)
    for row, one in enumerate(batch):
        ids[row, : len(one.text)] = torch.tensor(one.text)
        predicted[row, len(one.prompt) - 1 - first : len(one.text) - 1 - first] = True
    return ids.to(device), predicted.to(device), first


GROUP = 16  # answers in one pass when states are stored


@dataclass(frozen=True, slots=True)
class Read:
    """Some answers as the target reads them.

    `features` are its hidden states of the requested layers, concatenated, shape (answers, length, layers *
    width), `states` the last ones after the final norm, (answers, length, width), `ids` the tokens and
    `predicted` the positions whose next token belongs to the answer, both (answers, length). Padding has the
    states 0.
    """

    ids: Tensor
    predicted: Tensor
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
        known = all(one.text in self.kept for one in answers)
        rows = [self.kept[one.text] for one in answers] if known else self._pass(answers)
        if context:
            rows = [row[max(0, len(a.prompt) - context) :] for row, a in zip(rows, answers, strict=True)]
            answers = [replace(a, prompt=a.prompt[-context:]) for a in answers]
        ids, predicted = _places(answers, self.target.device)
        states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(ids.device)
        width = states.shape[-1] // (1 + len(self.others))
        last = states[..., -width:]
        return Read(ids, predicted, states[..., :-width] if self.others else last, last)

    @torch.no_grad()
    def logits(self, answers: Sequence[Answer]) -> Tensor:
        """The target's logits before each token of some answers, shape (tokens, vocabulary)."""
        if all(one.text in self.kept for one in answers) and self._plain:
            read = self.read(answers)
            rows: Tensor = self.target.get_output_embeddings()(read.states[read.predicted])
            return rows
        ids, predicted, first = padded(answers, self.target.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        rows = self.target(ids, logits_to_keep=keep, use_cache=False).logits[predicted]
        return rows

    @torch.no_grad()
    def keep(self, answers: Sequence[Answer], file: Path, tell: Tell, *, most: float = inf) -> None:
        """Compute the states of answers once and store them in a file, which later trainings share.

        A file that has some of them is completed, so that its numbers stay what they are, and loses the
        others if it would be larger than `most` bytes. One of another target, precision or layers is
        overwritten.

        Raises:
            UserError: the file cannot be written.
        """
        by_digest = self._stored(file)
        order = sorted({one.text: one for one in answers}.values(), key=lambda one: (len(one.text), one.text))
        missing = [one for one in order if _digest(one.text) not in by_digest]
        if missing:
            if sum(rows.nbytes for rows in by_digest.values()) + self.size(missing) > most:
                wanted = {_digest(one.text) for one in order}
                by_digest = {key: rows for key, rows in by_digest.items() if key in wanted}
            self._write(by_digest, missing, file, tell)
            by_digest = self._stored(file)
        self.kept = {one.text: by_digest[_digest(one.text)] for one in order}

    def _stored(self, file: Path) -> dict[str, Tensor]:
        """The states in a file by the digest of their text; none if they are of something else."""
        try:
            with safe_open(file, framework="pt") as opened:
                if opened.metadata() != self._about:
                    return {}
            tensors = load_file(file)
            digests = bytes(tensors["digests"].tolist()).decode().split()
            parts = torch.split(tensors["states"], tensors["lengths"].tolist())
            return dict(zip(digests, parts, strict=True))
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
            return {}

    def _write(self, stored: Mapping[str, Tensor], missing: Sequence[Answer], file: Path, tell: Tell) -> None:
        """Write what was stored and the states of the missing answers, which are computed here."""
        lengths = [*map(len, stored.values()), *(len(one.text) for one in missing)]
        digests = [*stored, *(_digest(one.text) for one in missing)]
        states, done = torch.empty(sum(lengths), self._width, dtype=self.dtype), 0
        for rows in chain(stored.values(), self._computed(missing, tell)):
            states[done : done + len(rows)] = rows
            done += len(rows)
        part = file.with_name(f"{file.name}.part")
        tensors = {
            "states": states,
            "digests": torch.tensor(list(" ".join(digests).encode()), dtype=torch.uint8),
            "lengths": torch.tensor(lengths),
        }
        try:
            save_file(tensors, part, self._about)
            part.replace(file)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            what = f"{states.nbytes / 1e6:.0f} MB of states to {file}: {str(error).splitlines()[0]}"
            raise UserError(
                f"cannot write {what}; make room, or train with --remember 0 to another --out"
            ) from error

    def _computed(self, answers: Sequence[Answer], tell: Tell) -> Iterator[Tensor]:
        for at in range(0, len(answers), GROUP):
            tell("Reading answers", at, len(answers))
            yield from self._pass(answers[at : at + GROUP])
        tell("Reading answers", len(answers), len(answers))

    def size(self, answers: Sequence[Answer]) -> int:
        """The size of these answers' states in bytes."""
        return sum(map(len, {one.text for one in answers})) * self._width * self.dtype.itemsize

    @property
    def _width(self) -> int:
        return int(self.target.get_output_embeddings().weight.shape[1]) * (1 + len(self.others))

    @cached_property
    def _about(self) -> dict[str, str]:
        """What determines the states of a text."""
        of = f"{model_fingerprint(self.target)} {self.others} {self.dtype}"
        return {"format": "draftwise-states", "version": "2", "of": of}

    @cached_property
    def _plain(self) -> bool:
        """Whether nothing follows the output layer, such as a bound on the logits."""
        ids = torch.tensor([next(iter(self.kept))[:8]], device=self.target.device)
        out = self.target(ids, output_hidden_states=True, use_cache=False)
        bare = self.target.get_output_embeddings()(out.hidden_states[-1])
        return bool(torch.allclose(bare, out.logits, rtol=1e-3, atol=1e-3))

    def _pass(self, answers: Sequence[Answer]) -> list[Tensor]:
        ids, _ = _places(answers, self.target.device)
        out = self.target(ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        states = torch.cat([out.hidden_states[k].to(self.dtype) for k in (*self.others, -1)], dim=-1)
        return [row[: len(one.text)] for row, one in zip(states, answers, strict=True)]


def make_teacher(run: Training, material: Material, tell: Tell, layers: Sequence[int] = ()) -> Teacher:
    """The teacher of a training: it stores its states if the answers are used more than once."""
    teacher = Teacher(material.target, layers, torch.bfloat16 if in_half(run) else None)
    every = [*material.answers, *material.held_out]
    again = run.minutes > 0 or run.steps * run.batch > len(every)
    most = run.remember * 2**30
    if again and teacher.size(every) <= most:
        name = "-".join(["states", *map(str, teacher.others)])
        with accelerate(run).autocast():
            teacher.keep(every, material.file.with_suffix(f".{name}.safetensors"), tell, most=most)
    return teacher


class DistillationTask:
    """A module that learns from the target's states or logits along its own answers (see `steps.Task`)."""

    progress = 0.0

    def __init__(self, run: Any, model: Any, material: Material, tell: Tell, layers: Sequence[int]) -> None:
        self.run, self.model, self.answers = run, model, material.answers
        self.teacher = make_teacher(run, material, tell, layers)
        self.held_out = [material.held_out[at : at + 16] for at in range(0, len(material.held_out), 16)]


def _places(answers: Sequence[Answer], device: torch.device) -> tuple[Tensor, Tensor]:
    ids, predicted, first = padded(answers, device)
    return ids, torch.nn.functional.pad(predicted, (first, 1))


def _digest(text: Sequence[int]) -> str:
    return sha256(str(list(text)).encode()).hexdigest()[:20]
