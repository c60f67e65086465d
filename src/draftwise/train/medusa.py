"""`draftwise train medusa`: heads that each predict one later token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.heads.medusa import Medusa, new_medusa
from .folder import Folder, Material
from .results import deliver_head, run_training
from .settings import MedusaRun
from .steps import take
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
        heads = [torch.cat(hits) for hits in zip(*batches, strict=True)]
        return {f"agreement {k + 1}": float(hits.mean()) for k, hits in enumerate(heads)}

    def _guesses(self, batch: Sequence[Answer]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each head's logits and the target's, both (tokens, vocabulary), and the tokens to predict."""
        states_read = self.teacher.read(batch)
        guesses = []
        for ahead, head in enumerate(self.model.medusa_head, 1):  # tokens after the target's next one
            counted = states_read.guessed[:, ahead:]
            q = head(states_read.states[:, :-ahead][counted])
            if self.model.tied:
                q = self.model.shared[0](q)
            with torch.no_grad():
                p = self.model.shared[0](states_read.states[:, ahead:][counted])
            guesses.append((q, p, states_read.ids.roll(-1, 1)[:, ahead:][counted]))
        return guesses


def train(run: MedusaRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train Medusa heads; calling it again resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """
    return run_training("medusa", run, out, tell, _train)


def _train(run: MedusaRun, folder: Folder, material: Material, tell: Tell) -> dict[str, Any]:
    heads = new_medusa(material.target, heads=run.heads, blocks=run.blocks, tied=run.tied).float()
    log = take(MedusaTask(run, heads, material, tell), run, folder.checkpoints, tell, material.budget)
    return deliver_head("medusa", run, folder, material, log, tell, head=heads)
