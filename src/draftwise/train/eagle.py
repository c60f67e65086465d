"""`draftwise train eagle`: a head that continues from the target's features, and from its own in longer
drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from ..errors import UserError
from ..models.heads.eagle import Eagle, Eagle3, load_eagle, new_eagle
from .folder import Material
from .results import Session, run_training
from .settings import EagleRun
from .teacher import DistillationTask, Read, distance
from .texts import Answer, Tell


class EagleTask(DistillationTask):
    """An EAGLE head is trained on all draft steps at once, on the target's own answers (see `steps.Task`).

    EAGLE (arXiv 2401.15077, section 3.2): smooth L1 loss to the target's next feature, plus `share` times the
    divergence from its next-token distribution; EAGLE-3 (arXiv 2503.01840): the latter alone. Step 1 reads
    the target's features, each later step the head's own output of the previous step, as in drafting
    (EAGLE-3's training-time test). The weight of a step is `fading` times that of the previous one.
    """

    run: EagleRun
    model: Eagle

    def __init__(self, run: EagleRun, head: Eagle, material: Material, tell: Tell) -> None:
        super().__init__(run, head, material, tell, head.layers_read)

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        read = self.teacher.read([self.answers[i] for i in examples], self.run.context)
        noise = torch.rand(read.features.shape, generator=rng).to(read.features) - 0.5
        parts = []
        for depth, states in enumerate(self._unrolled(read, read.features + 2 * self.run.noise * noise)):
            counted, p, tokens = self._wanted(read, depth)
            lost = distance("kl", self.model.logits(states[counted]), p, tokens)
            if not self.run.eagle3:
                near = F.smooth_l1_loss(states[counted].float(), read.states[:, 1:][counted].float())
                lost = near + self.run.share * lost
            parts.append(self.run.fading**depth * lost)
        return torch.stack(parts).sum() / sum(self.run.fading**k for k in range(len(parts)))

    def measure(self) -> dict[str, float]:
        """Each step's agreement with the target on held-out answers, given correct tokens before it."""
        matches: dict[int, list[Tensor]] = {}
        for some in self.held_out:
            read = self.teacher.read(some)
            for depth, states in enumerate(self._unrolled(read, read.features)):
                counted, p, _ = self._wanted(read, depth)
                same = self.model.logits(states[counted]).argmax(-1) == p.argmax(-1)
                matches.setdefault(depth, []).append(same.float())
        return {f"agreement {k + 1}": float(torch.cat(some).mean()) for k, some in matches.items()}

    def _wanted(self, read: Read, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which pairs have a loss at a depth, the target's logits after them, and the next tokens.

        A pair counts if all tokens of its draft belong to the answer.
        """
        counted = read.predicted[:, 1:].clone()
        if depth:
            counted[:, depth:] &= read.predicted[:, 1:-depth]
            counted[:, :depth] = False
        with torch.no_grad():
            p = self.model.shared[1](read.states[:, 1:][counted])
            if self.model.ids is not None:
                p = p[:, self.model.ids]
        return counted, p, read.ids.roll(-1, 1)[:, 1:][counted]

    def _unrolled(self, read: Read, features: Tensor) -> list[Tensor]:
        """The head's states after each pair, at each depth: a list of tensors (answers, pairs, width).

        At depth d the pair's state was drafted in d steps. It attends to the target's features up to the
        start of that draft, and to the draft's own states after that.
        """
        tokens, states = read.ids[:, 1:], self.model.read(features[:, :-1])
        cache, unrolled = DynamicCache(), list[Tensor]()
        for depth in range(self.run.depth):
            mask = sight(tokens.shape[1], depth).to(states)
            after = self.model(tokens, states, attention_mask=mask, cache=cache)
            unrolled.append(after)
            states = after.roll(1, 1)
        return unrolled


def sight(pairs: int, depth: int) -> Tensor:
    """The additive attention mask of draft step `depth` (from 0), shape (1, 1, pairs, (depth + 1) * pairs).

    Keys are those of all steps so far, one after the other. Pair i of step d attends to the pairs of step 0
    up to i - d, where its draft began, and then to one pair of each step: i - d + 1 of step 1, ..., i of step
    d.
    """
    query, key = torch.arange(pairs)[:, None], torch.arange(pairs)[None]
    parts = [key <= query - depth]
    parts += [key == query - depth + step for step in range(1, depth + 1)]
    visible = torch.cat(parts, dim=1)
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


def train(run: EagleRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train an EAGLE head; a second call resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """
    return run_training("eagle", run, out, tell, _train)


def _train(session: Session[EagleRun]) -> dict[str, Any]:
    run, material, before = session.run, session.material, None
    head = started(run, material.target) if run.start else _fresh(run, material)
    if run.start:
        before = session.folder.once("before", lambda: session.measure(f"eagle:{run.start}"))
    log = session.take_steps(EagleTask(run, head, material, session.tell))
    return session.deliver_head("eagle", head, log, before)


def started(run: EagleRun, target: Any) -> Eagle:
    """The head to continue training, in float32.

    Raises:
        UserError: it cannot be read, or is of the other kind.
    """
    head = load_eagle(run.start, target).float()
    if isinstance(head, Eagle3) != run.eagle3:
        kind = "eagle3" if isinstance(head, Eagle3) else "eagle"
        raise UserError(f"{run.start} is a head of the kind {kind}: add --kind {kind}")
    return head


def _fresh(run: EagleRun, material: Material) -> Eagle:
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        head = new_eagle(material.target, eagle3=run.eagle3, drafted=run.drafted).float()
    if isinstance(head, Eagle3) and run.drafted:
        head.choose(frequent(material.answers, run.drafted, head.vocab_size))
    return head


def frequent(answers: Sequence[Answer], n: int, vocab_size: int) -> list[int]:
    """The `n` most frequent tokens of the answers; among equally frequent ones the lowest ids."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for one in answers:
        counts += torch.bincount(torch.tensor(one.tokens), minlength=vocab_size)
    chosen: list[int] = counts.sort(descending=True, stable=True).indices[:n].tolist()
    return chosen
