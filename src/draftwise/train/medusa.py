"""`draftwise train medusa`: heads that each predict one later token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.heads.medusa import Medusa, new_medusa
from .folder import Folder, Material, gather
from .heads import finish
from .losses import agreement, distance
from .numerics import settled
from .settings import MedusaRun
from .steps import take
from .teacher import teacher
from .texts import Answer, Tell


class MedusaTask:
    """Medusa's heads (arXiv 2401.10774, section 2.2.1) on the target's own answers (see `steps.Task`).

    The loss is a weighted mean over heads, with geometrically falling weights.
    """

    def __init__(self, run: MedusaRun, heads: Medusa, material: Material, tell: Tell) -> None:
        self.run, self.model, self.material = run, heads, material
        self.answers = material.answers
        self.teacher = teacher(run, material, tell, (-1,))

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """The loss over all heads and the tokens of some answers."""
        guesses = self._guesses([self.answers[i] for i in examples])
        weights = [self.run.fading**k for k in range(len(guesses))]
        losses = [w * distance(self.run.loss, *rows) for w, rows in zip(weights, guesses, strict=True)]
        return torch.stack(losses).sum() / sum(weights)

    def measure(self) -> dict[str, float]:
        """Each head's agreement with the target on held-out answers."""
        found: list[list[Tensor]] = []
        for at in range(0, len(self.material.held_out), 16):
            guesses = self._guesses(self.material.held_out[at : at + 16])
            found.append([agreement(q, p)[1] for q, p, _ in guesses])
        heads = [torch.cat(hits) for hits in zip(*found, strict=True)]
        return {f"agreement {k + 1}": float(hits.mean()) for k, hits in enumerate(heads)}

    def _guesses(self, batch: Sequence[Answer]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each head's logits and the target's, both (tokens, vocabulary), and the tokens to predict."""
        seen = self.teacher.read(batch)
        found = []
        for k, head in enumerate(self.model.medusa_head):
            ahead = k + 1  # offset from the target's next token to the one this head predicts
            wanted = seen.guessed[:, ahead:]
            q = head(seen.states[:, :-ahead][wanted])
            if self.model.tied:
                q = self.model.shared[0](q)
            with torch.no_grad():
                p = self.model.shared[0](seen.states[:, ahead:][wanted])
            tokens = seen.ids.roll(-1, 1)[:, ahead:][wanted]
            found.append((q, p, tokens))
        return found


def train(run: MedusaRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train Medusa heads; calling it again resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """
    folder = Folder(out)
    if done := folder.claim("medusa", run):
        return done
    with settled(run, folder.numerics) as run:
        return _train(run, folder, tell)


def _train(run: MedusaRun, folder: Folder, tell: Tell) -> dict[str, Any]:
    material = gather(run, folder, tell)
    heads = new_medusa(material.target, heads=run.heads, blocks=run.blocks, tied=run.tied).float()
    log = take(MedusaTask(run, heads, material, tell), run, folder.checkpoints, tell, material.budget)
    return finish("medusa", run, folder, heads, material, log, tell)
