"""`draftwise train medusa`: heads that each predict one later token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..models.heads.medusa import Medusa, new_medusa
from .folder import Material
from .results import Session, training
from .settings import MedusaRun
from .teacher import DistillationTask, agreement, distance
from .texts import Answer, Tell


class MedusaTask(DistillationTask):
    """Medusa's heads (arXiv 2401.10774, section 2.2.1) on the target's own answers (see `steps.Task`).

    The loss is a weighted mean over heads, with geometrically falling weights.
    """

    run: MedusaRun
    model: Medusa

    def __init__(self, run: MedusaRun, heads: Medusa, material: Material, tell: Tell) -> None:
        super().__init__(run, heads, material, tell, (-1,))

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        guesses = self._guesses([self.answers[i] for i in examples])
        weights = [self.run.fading**k for k in range(len(guesses))]
        losses = [w * distance(self.run.loss, *rows) for w, rows in zip(weights, guesses, strict=True)]
        return torch.stack(losses).sum() / sum(weights)

    def measure(self) -> dict[str, float]:
        """Each head's agreement with the target on held-out answers."""
        batches = [[agreement(q, p)[1] for q, p, _ in self._guesses(some)] for some in self.held_out]
        heads = [torch.cat(matches) for matches in zip(*batches, strict=True)]
        return {f"agreement {k + 1}": float(matches.mean()) for k, matches in enumerate(heads)}

    def _guesses(self, batch: Sequence[Answer]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each head's logits and the target's, both (tokens, vocabulary), and the tokens to predict."""
        read = self.teacher.read(batch)
        guesses = []
        for ahead, head in enumerate(self.model.medusa_head, 1):  # tokens after the target's next one
            counted = read.predicted[:, ahead:]
            q = head(read.states[:, :-ahead][counted])
            if self.model.tied:
                q = self.model.shared[0](q)
            with torch.no_grad():
                p = self.model.shared[0](read.states[:, ahead:][counted])
            guesses.append((q, p, read.ids.roll(-1, 1)[:, ahead:][counted]))
        return guesses


@training("medusa")
def train(session: Session[MedusaRun]) -> dict[str, Any]:
    """Train Medusa heads."""
    run, material = session.run, session.material
    heads = new_medusa(material.target, heads=run.heads, blocks=run.blocks, tied=run.tied).float()
    log = session.take_steps(MedusaTask(run, heads, material, session.tell))
    return session.deliver_head(heads, log)
