"""`draftwise train classifier`: DISCO's and SpecDec++'s classifiers that decide when to stop a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.stops import TOP
from ..models.fingerprints import drafter_fingerprint
from ..models.runner.hidden_states import LayerHooks
from ..policies.classifiers.stopping import INPUTS, Disco, Scorer, SpecDecPlus, save
from .folder import load_drafter
from .results import Session, training
from .settings import ClassifierRun
from .steps import in_half
from .teacher import Teacher, make_teacher, padded
from .texts import Answer, Tell


@dataclass(frozen=True, slots=True)
class Drafted:
    """One answer, token by token: the inputs of DISCO's classifier, shape (tokens, 12), the token drafted at
    each position, and its acceptance probability, both of shape (tokens)."""

    answer: Answer
    features: Tensor
    tokens: Tensor
    accepted: Tensor


@torch.no_grad()
def drafted(
    run: ClassifierRun, answers: Sequence[Answer], teacher: Teacher, drafter: Any, seed: int, tell: Tell
) -> list[Drafted]:
    """Let the drafter predict every token of the answers, each after the target's own text before it.

    The labels `agree` take its most likely token, accepted if it is the target's too (greedy decoding);
    `chance` samples one from q, accepted with min(1, p / q) (SpecDec++, arXiv 2405.19715); `overlap` is the
    probability before sampling, 1 - TV (DISCO, arXiv 2405.04304). Samples depend on the seed alone.
    """
    rng, examples, batch = torch.Generator().manual_seed(seed), dict[int, Drafted](), run.batch
    order = sorted(range(len(answers)), key=lambda i: len(answers[i].text))  # less padding
    tell("Labels", 0, len(answers))
    for at in range(0, len(answers), batch):
        some = [answers[i] for i in order[at : at + batch]]
        ids, predicted, first = padded(some, drafter.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=in_half(run)):
            guesses = drafter(ids, logits_to_keep=keep, use_cache=False).logits[predicted]
            rows = (guesses, teacher.logits(some))
        size = min(row.shape[-1] for row in rows)
        q, p = (row[:, :size].float().softmax(-1).cpu() for row in rows)
        tokens, accepted = _labels(run.labelling, q, p, rng)
        counts = [len(one.tokens) for one in some]
        places = torch.cat([torch.arange(n) for n in counts])
        parts = (torch.split(t, counts) for t in (features(q, places), tokens, accepted))
        for i, one in zip(order[at : at + batch], zip(*parts, strict=True), strict=True):
            examples[i] = Drafted(answers[i], *one)
        tell("Labels", min(at + batch, len(answers)), len(answers))
    return [examples[i] for i in range(len(answers))]


def features(q: Tensor, places: Tensor) -> Tensor:
    """`draftwise.policies.classifiers.stopping.features` of many tokens at once: shape (tokens, 12)."""
    top = q.topk(min(TOP, q.shape[-1])).values
    entropy = -torch.special.xlogy(top, top).sum(-1)
    top = torch.nn.functional.pad(top, (0, TOP - top.shape[-1]))
    return torch.cat((top, entropy[:, None], places[:, None].float()), dim=-1)


def _labels(labels: str, q: Tensor, p: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    if labels == "agree":
        tokens = q.argmax(-1)
        return tokens, (p.argmax(-1) == tokens).float()
    quantiles = torch.rand(len(q), generator=rng)[:, None]
    tokens = (q.cumsum(-1) < quantiles * q.sum(-1, keepdim=True)).sum(-1).clamp(max=q.shape[-1] - 1)
    if labels == "overlap":
        return tokens, torch.minimum(p, q).sum(-1)
    chosen = tokens[:, None]
    return tokens, (p.gather(1, chosen) / q.gather(1, chosen).clamp(min=1e-30)).clamp(max=1.0)[:, 0]


def scores(chances: Tensor, accepted: Tensor, *, weight: float = 1.0) -> dict[str, float]:
    """F1 of the prediction "accepted", and accuracy.

    The threshold corresponds to an acceptance probability of 1/2: after training with rejections weighted by
    `weight`, this is an output of 1 / (1 + weight).
    """
    predicted, actual = chances * (1.0 + weight) >= 1.0, accepted >= 0.5
    true_positives = float((predicted & actual).sum())
    wrong = float((predicted ^ actual).sum())
    return {
        "f1": 2 * true_positives / max(2 * true_positives + wrong, 1.0),
        "accuracy": 1.0 - wrong / max(len(actual), 1),
    }


def weighted(z: Tensor, accepted: Tensor, weight: float) -> Tensor:
    """Binary cross-entropy with soft labels and weighted rejections, divided by the sum of the weights.

    `z` are the log-odds of acceptance (SpecDec++, arXiv 2405.19715, section 3.2).
    """
    rejected = weight * (1.0 - accepted)
    lost = accepted * F.logsigmoid(z) + rejected * F.logsigmoid(-z)
    return -lost.sum() / (accepted + rejected).sum()


class DiscoTask:
    """DISCO's classifier on the drafter's ten largest probabilities (see `steps.Task`).

    A hidden layer of width 0 is logistic regression.
    """

    progress = 0.0

    def __init__(self, run: ClassifierRun, training: Sequence[Drafted], held_out: Sequence[Drafted]) -> None:
        self.training, self.held_out, self.weight = training, held_out, run.weight
        self.answers = [one.answer for one in training]
        every = torch.cat([one.features for one in training])
        self.mean, self.scale = every.mean(0), every.std(0).clamp(min=1e-6)
        body: list[nn.Module] = [nn.Linear(INPUTS, run.hidden), nn.ReLU()] if run.hidden else []
        self.model = nn.Sequential(*body, nn.Linear(run.hidden or INPUTS, 1))

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        some = [self.training[i] for i in examples]
        return weighted(self._odds(some), torch.cat([one.accepted for one in some]), self.weight)

    def measure(self) -> dict[str, float]:
        accepted = torch.cat([one.accepted for one in self.held_out])
        return scores(self._odds(self.held_out).sigmoid(), accepted, weight=self.weight)

    def scorer(self, drafter: str) -> Scorer:
        """The classifier as stored, with the scaling of its inputs folded into the first layer."""
        layers: list[Any] = [m for m in self.model if isinstance(m, nn.Linear)]
        first, last = layers[0], layers[-1]
        weight = first.weight.detach() / self.scale
        bias = first.bias.detach() - weight @ self.mean
        out, shift = last.weight.detach(), last.bias.detach()
        if first is last:  # z = relu(z) - relu(-z): a linear function as a hidden layer of two
            weight, bias = torch.cat((weight, -weight)), torch.cat((bias, -bias))
            out, shift = torch.tensor([[1.0, -1.0]]), torch.zeros(1)
        return Disco(weight.numpy(), bias.numpy(), out.numpy(), shift.numpy(), drafter)

    def _odds(self, some: Sequence[Drafted]) -> Tensor:
        odds: Tensor = self.model((torch.cat([one.features for one in some]) - self.mean) / self.scale)
        return odds[:, 0]


class Head(nn.Module):
    """SpecDec++'s head: `x + SiLU(W x + b)` several times, then two outputs."""

    def __init__(self, width: int, blocks: int, *, shared: bool) -> None:
        super().__init__()
        own = min(blocks, 1) if shared else blocks
        self.repeat = blocks // own if own else 1
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(own))
        self.out = nn.Linear(width, 2)

    def forward(self, states: Tensor) -> Tensor:
        """Log-odds of acceptance, shape (...), of the token that each state was computed from."""
        for _ in range(self.repeat):
            for block in self.blocks:
                states = states + F.silu(block(states))
        both: Tensor = self.out(states)
        return both[..., 1] - both[..., 0]


class SpecDecPlusTask:
    """SpecDec++'s head on the drafter's hidden states (see `steps.Task`).

    The drafter reads the answers mixed with its own tokens: each position keeps the target's token with
    probability `keep` and otherwise has the drafted one; the loss uses only the latter. The hidden state
    after a drafted token predicts whether that token is accepted.
    """

    progress = 0.0

    def __init__(
        self, run: ClassifierRun, training: Sequence[Drafted], held_out: Sequence[Drafted], drafter: Any
    ) -> None:
        self.training, self.held_out, self.run = training, held_out, run
        self.drafter, self.hooks = drafter, LayerHooks(drafter, (-1,))
        self.answers, self.weight = [one.answer for one in training], run.weight
        width = int(drafter.get_output_embeddings().weight.shape[1])
        self.model = Head(width, run.blocks, shared=run.shared).to(drafter.device)

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        return weighted(*self._odds([self.training[i] for i in examples], rng), self.weight)

    def measure(self) -> dict[str, float]:
        rng = torch.Generator().manual_seed(self.run.seed)
        parts = [self._odds(self.held_out[at : at + 16], rng) for at in range(0, len(self.held_out), 16)]
        odds, accepted = (torch.cat(part) for part in zip(*parts, strict=True))
        return scores(odds.sigmoid(), accepted, weight=self.weight)

    def scorer(self, drafter: str) -> Scorer:
        """The head as stored."""
        model = self.model.cpu()
        linears: list[Any] = list(model.blocks)
        blocks = tuple((b.weight.detach().numpy(), b.bias.detach().numpy()) for b in linears)
        out, bias = model.out.weight.detach().numpy(), model.out.bias.detach().numpy()
        return SpecDecPlus(blocks, out, bias, model.repeat, drafter)

    def _odds(self, some: Sequence[Drafted], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Log-odds and probabilities of acceptance, both of shape (drafted tokens)."""
        texts, ours = [], []
        for one in some:
            kept = torch.rand(len(one.tokens), generator=rng) < self.run.keep
            mixed = torch.where(kept, torch.tensor(one.answer.tokens), one.tokens)
            texts.append(Answer(one.answer.prompt, tuple(mixed.tolist())))
            ours.append(~kept)
        ids, predicted, first = padded(texts, self.drafter.device)
        keep = torch.arange(first + 1, ids.shape[1], device=ids.device)
        with torch.no_grad():
            self.drafter(ids, logits_to_keep=keep, use_cache=False)
        states = self.hooks.latest[-1][:, keep][predicted].float()  # set by the pass above
        mine = torch.cat(ours).to(states.device)
        accepted = torch.cat([one.accepted for one in some]).to(states.device)
        return self.model(states[mine]), accepted[mine]


def prepared(run: ClassifierRun, target: Any, tokenizer: Any) -> Any:
    """Return the model whose drafts are to be stopped."""
    return load_drafter(run.drafter, run, target, tokenizer).requires_grad_(False)


@training("classifier", prepared)
def train(session: Session[ClassifierRun]) -> dict[str, Any]:
    """Train a classifier."""
    run, material, tell = session.run, session.material, session.tell
    drafter = material.prepared
    target = make_teacher(run, material, tell)
    training, held_out = (
        drafted(run, some, target, drafter, run.seed + k, tell)
        for k, some in enumerate((material.answers, material.held_out))
    )
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        task: DiscoTask | SpecDecPlusTask
        if run.kind == "disco":
            task = DiscoTask(run, training, held_out)
        else:
            task = SpecDecPlusTask(run, training, held_out, drafter)
    log = session.take_steps(task)
    scorer = task.scorer(drafter_fingerprint(run.drafter))
    accepted = torch.cat([one.accepted for one in held_out])
    last = next(row for row in reversed(log) if "f1" in row)

    def measure(part: Path) -> dict[str, Any]:
        decoded = session.measure(drafter, f"{run.kind}?model={quote(str(part / 'model.safetensors'))}")
        return {"after": {name: last[name] for name in ("f1", "accuracy")} | decoded}

    return session.deliver(
        log,
        title=f"{run.kind} for {run.drafter}",
        save=lambda part: save(scorer, part / "model.safetensors"),
        measure=measure,
        before=scores(torch.ones(len(accepted)), accepted) | session.measure(drafter),
        kind=run.kind,
    )
