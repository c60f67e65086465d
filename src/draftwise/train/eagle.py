"""`draftwise train eagle`: a head that continues from the target's features, and from its own in longer
drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from ..errors import UserError
from ..models.heads.eagle import Eagle, Eagle3, beside, load_eagle, new_eagle
from ..models.runner.hidden_states import layers_of
from .folder import Material
from .results import Session, training
from .settings import EagleRun
from .teacher import DistillationTask, Read
from .texts import Answer, Tell

DRAFTED = 8192  # tokens that a new EAGLE-3 head drafts from, of a larger vocabulary


class EagleTask(DistillationTask):
    """An EAGLE head is trained on all draft steps at once, on the target's own answers (see `steps.Task`).

    EAGLE (arXiv 2401.15077, section 3.2): smooth L1 loss to the target's next feature, plus `share` times the
    divergence from its next-token distribution; EAGLE-3 (arXiv 2503.01840): the latter alone. Step 1 reads
    the target's features, each later step the head's own output of the previous step, as in drafting
    (EAGLE-3's training-time test). The weight of a step is `fading` times that of the previous one. The first
    `shallow` of the training learns step 1 alone.
    """

    run: EagleRun
    model: Eagle

    def __init__(self, run: EagleRun, head: Eagle, material: Material, tell: Tell) -> None:
        super().__init__(run, head, material, tell, head.layers_read)

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        read = self.teacher.read([self.answers[i] for i in examples], self.run.context)
        p, parts = self._target_logits(read).float().softmax(-1), []
        entropy = torch.special.entr(p).sum(-1)
        features = read.features
        if not self.run.eagle3:
            features = features + self.run.noise * (2 * torch.rand(features.shape, generator=rng) - 1).to(
                features
            )
        steps = 1 if self.progress < self.run.shallow else self.run.depth
        for depth, (counted, states) in enumerate(self._unrolled(read, features, steps)):
            here = _within(read, counted)
            crossed = F.cross_entropy(self.model.logits(states[counted]).float(), p[here])
            lost = crossed - entropy[here].mean()  # the divergence, with p's logarithm taken once
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
            wanted = self._target_logits(read).argmax(-1)
            for depth, (counted, states) in enumerate(self._unrolled(read, read.features, self.run.depth)):
                same = self.model.logits(states[counted]).argmax(-1) == wanted[_within(read, counted)]
                matches.setdefault(depth, []).append(same.float())
        return {f"agreement {k + 1}": float(torch.cat(some).mean()) for k, some in matches.items()}

    @torch.no_grad()
    def _target_logits(self, read: Read) -> Tensor:
        """The target's logits of the drafted vocabulary, after each pair whose next token is the answer's."""
        states = read.states[:, 1:][read.predicted[:, 1:]]
        return F.linear(states, *self._drafted_rows) if self._drafted_rows else self._all_logits(states)

    def _all_logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.model.shared[1](states)
        return logits if self.model.ids is None else logits[:, self.model.ids]

    @cached_property
    def _drafted_rows(self) -> tuple[Tensor, Tensor | None] | None:
        """The rows of the target's output layer that are drafted from; None if it must be called whole."""
        layer, ids = self.model.shared[1], self.model.ids
        if ids is None or type(layer) is not torch.nn.Linear:
            return None
        return layer.weight[ids], None if layer.bias is None else layer.bias[ids]

    def _unrolled(self, read: Read, features: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
        """Which pairs have a loss, and the head's states after each pair, (answers, pairs, width), by depth.

        At depth d the pair's state was drafted in d steps. It attends to the target's features up to the
        start of that draft, and to the draft's own states after that. Depths that no answer is long enough
        for are left out.
        """
        tokens, states = read.ids[:, 1:], self.model.read(features[:, :-1])
        cache, unrolled = DynamicCache(), list[tuple[Tensor, Tensor]]()
        for depth in range(steps):
            counted = counted_pairs(read.predicted, depth)
            if depth and not counted.any():
                break
            mask = sight(tokens.shape[1], depth).to(states)
            after = self.model(tokens, states, attention_mask=mask, cache=cache)
            unrolled.append((counted, after))
            states = after.roll(1, 1)
        return unrolled


def counted_pairs(predicted: Tensor, depth: int) -> Tensor:
    """Which pairs have a loss at a depth: all tokens of their draft are the answer's; (answers, pairs)."""
    counted = predicted[:, 1:].clone()
    if depth:
        counted[:, depth:] &= predicted[:, 1:-depth]
        counted[:, :depth] = False
    return counted


def _within(read: Read, counted: Tensor) -> Tensor:
    """Of the pairs that count at depth 0, which count here."""
    return counted[read.predicted[:, 1:]]


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


def prepared(run: EagleRun, target: Any, tokenizer: Any) -> Eagle | None:
    """Return the head to continue from; None where a new one is made of the answers."""
    return started(run, target) if run.start else None


@training("eagle", prepared)
def train(session: Session[EagleRun]) -> dict[str, Any]:
    """Train an EAGLE head."""
    run, material, before = session.run, session.material, None
    head = _fresh(run, material) if material.prepared is None else material.prepared
    if run.start:
        before = session.folder.once("before", lambda: session.measure(f"eagle:{run.start}"))
        if isinstance(head, Eagle3) and run.drafted:
            head = redrafted(head, material.target, frequent(material.answers, run.drafted, head.vocab_size))
    log = session.take_steps(EagleTask(run, head, material, session.tell))
    return session.deliver_head(head, log, before)


def started(run: EagleRun, target: Any) -> Eagle:
    """The head to continue training, in float32.

    Raises:
        UserError: it cannot be read, or is of another kind.
    """
    head = load_eagle(run.start, target).float()
    if type(head) not in (Eagle, Eagle3):
        raise UserError(f"{run.start} is a {type(head).__name__} head: name one of EAGLE or EAGLE-3")
    if isinstance(head, Eagle3) != run.eagle3:
        kind = "eagle3" if isinstance(head, Eagle3) else "eagle"
        raise UserError(f"{run.start} is a head of the kind {kind}: add --kind {kind}")
    return head


def _fresh(run: EagleRun, material: Material) -> Eagle:
    size = int(material.target.config.get_text_config(decoder=True).vocab_size)
    drafted = run.drafted or DRAFTED
    some = run.eagle3 and drafted < size
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        head = new_eagle(material.target, eagle3=run.eagle3, drafted=drafted * some).float()
    if isinstance(head, Eagle3):
        if some:
            head.choose(frequent(material.answers, drafted, size))
        start_from_target(head, material.target)
    return head


@torch.no_grad()
def redrafted(head: Eagle3, target: Any, ids: Sequence[int]) -> Eagle3:
    """A copy of a head that drafts from other tokens: rows that it lacks are the target's own."""
    config = deepcopy(head.config)
    config.draft_vocab_size = len(ids)
    own = tuple(name for name in ("embed_tokens", "lm_head") if hasattr(head, name))
    new = beside(type(head)(config, target, own=own), target).float()
    apart = ("lm_head.weight", "d2t", "t2d")
    new.load_state_dict({k: v for k, v in head.state_dict().items() if k not in apart}, strict=False)
    if new.ids is not None:
        new.choose(ids)
    output_from_target(new)
    old_ids = range(head.vocab_size) if head.ids is None else head.ids.tolist()
    rows = {token: row for row, token in enumerate(old_ids)}
    for row, token in enumerate(sorted(ids)):
        if token in rows:
            new.lm_head.weight[row] = head.lm_head.weight[rows[token]]
    return new


@torch.no_grad()
def output_from_target(head: Eagle3) -> None:
    """Copy the target's own rows to the head's output layer."""
    weight = head.shared[1].weight
    rows = weight if head.ids is None else weight[head.ids]
    if rows.shape == head.lm_head.weight.shape:
        head.lm_head.weight.copy_(rows)


@torch.no_grad()
def start_from_target(head: Eagle3, target: Any) -> None:
    """Start a head as the target's last layer, which reads the highest feature, where the shapes agree.

    Attention also reads the token, with weights half as large as random ones would be.
    """
    output_from_target(head)
    layers, own = layers_of(target), head.midlayer
    first, last = layers[0], layers[-1]
    sources = dict(last.named_parameters())
    for name, parameter in own.named_parameters():
        source = sources.get(name)
        if source is None or "norm" in name:
            continue
        if source.shape == parameter.shape:
            parameter.copy_(source)
        elif source.dim() == 2 and parameter.shape == (len(source), 2 * source.shape[1]):
            parameter[:, source.shape[1] :].copy_(source)
            parameter[:, : source.shape[1]].mul_(0.5)
    start_norm(own.hidden_norm, getattr(last, "input_layernorm", None))
    start_norm(own.input_layernorm, getattr(first, "input_layernorm", None))
    start_norm(own.post_attention_layernorm, getattr(last, "post_attention_layernorm", None))
    start_norm(head.norm, getattr(target.base_model, "norm", None))
    if hasattr(head, "fc") and head.target_width == head.config.hidden_size:
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, -head.target_width :] += torch.eye(head.target_width).to(head.fc.weight)


def start_norm(norm: Any, source: Any) -> None:
    """Copy a norm's weights if both then compute the same: Gemma's, for one, add 1 to theirs."""
    weight = getattr(source, "weight", None)
    if weight is None or weight.shape != norm.weight.shape:
        return
    before = norm.weight.clone()
    norm.weight.copy_(weight)
    states = torch.linspace(-2.0, 3.0, len(weight)).to(weight)
    if not torch.allclose(norm(states.to(norm.weight)).float(), source(states).float(), rtol=1e-2, atol=1e-2):
        norm.weight.copy_(before)


def frequent(answers: Sequence[Answer], n: int, vocab_size: int) -> list[int]:
    """The `n` most frequent tokens of the answers; among equally frequent ones the lowest ids."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for one in answers:
        counts += torch.bincount(torch.tensor(one.tokens), minlength=vocab_size)
    chosen: list[int] = counts.sort(descending=True, stable=True).indices[:n].tolist()
    return chosen
