"""`draftwise train classifier`: DISCO's and SpecDec++'s classifiers that decide when to stop a draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.fingerprints import drafter_fingerprint
from ..models.hidden_states import States
from ..models.load import load_model, load_tokenizer
from ..policies.classifiers.stopping import INPUTS, Disco, Scorer, SpecDecPlus, save
from .card import card
from .curves import curves
from .examples import Drafted, drafted, scores
from .folder import Folder, Material, gather
from .losses import padded
from .measure import acceptance
from .numerics import in_half, settled
from .settings import ClassifierRun
from .steps import take
from .teacher import teacher
from .texts import Answer, Tell


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

    def __init__(
        self, run: ClassifierRun, answers: Sequence[Answer], learnt: list[Drafted], held: list[Drafted]
    ) -> None:
        self.answers, self.learnt, self.held, self.weight = answers, learnt, held, run.weight
        every = torch.cat([one.features for one in learnt])
        self.mean, self.scale = every.mean(0), every.std(0).clamp(min=1e-6)
        body: list[nn.Module] = [nn.Linear(INPUTS, run.hidden), nn.ReLU()] if run.hidden else []
        self.model = nn.Sequential(*body, nn.Linear(run.hidden or INPUTS, 1))

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """The loss over all tokens of some answers."""
        some = [self.learnt[i] for i in examples]
        return weighted(self._odds(some), torch.cat([one.accepted for one in some]), self.weight)

    def measure(self) -> dict[str, float]:
        """F1 and accuracy on held-out answers."""
        accepted = torch.cat([one.accepted for one in self.held])
        return scores(self._odds(self.held).sigmoid(), accepted, weight=self.weight)

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


Pair: TypeAlias = tuple[Answer, Drafted]


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

    def __init__(self, run: ClassifierRun, drafter: Any, learnt: Sequence[Any], held: Sequence[Any]) -> None:
        self.learnt, self.held, self.run = learnt, held, run
        self.drafter, self.states = drafter, States(drafter)
        self.answers, self.weight = [answer for answer, _ in learnt], run.weight
        width = int(drafter.get_output_embeddings().weight.shape[1])
        self.model = Head(width, run.blocks, shared=run.shared).to(drafter.device)

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """The loss over the drafted tokens of some answers."""
        return weighted(*self._odds([self.learnt[i] for i in examples], rng), self.weight)

    def measure(self) -> dict[str, float]:
        """F1 and accuracy on held-out answers."""
        rng = torch.Generator().manual_seed(self.run.seed)
        parts = [self._odds(self.held[at : at + 16], rng) for at in range(0, len(self.held), 16)]
        odds, accepted = (torch.cat(part) for part in zip(*parts, strict=True))
        return scores(odds.sigmoid(), accepted, weight=self.weight)

    def scorer(self, drafter: str) -> Scorer:
        """The head as stored."""
        model = self.model.cpu()
        linears: list[Any] = list(model.blocks)
        blocks = tuple((b.weight.detach().numpy(), b.bias.detach().numpy()) for b in linears)
        out, bias = model.out.weight.detach().numpy(), model.out.bias.detach().numpy()
        return SpecDecPlus(blocks, out, bias, model.repeat, drafter)

    def _odds(self, some: Sequence[Pair], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Log-odds and probabilities of acceptance, both of shape (drafted tokens)."""
        texts, ours = [], []
        for answer, drafts in some:
            kept = torch.rand(len(answer.tokens), generator=rng) < self.run.keep
            mixed = torch.where(kept, torch.tensor(answer.tokens), drafts.tokens)
            texts.append(Answer(answer.prompt, tuple(mixed.tolist()), answer.temperature))
            ours.append(~kept)
        ids, guessed, first = padded(texts, self.drafter.device)
        keep = torch.arange(first + 1, ids.shape[1], device=ids.device)
        with torch.no_grad():
            self.drafter(ids, logits_to_keep=keep, use_cache=False)
        assert self.states.latest is not None  # set by the pass above
        states = self.states.latest[guessed].float()
        mine = torch.cat(ours).to(states.device)
        accepted = torch.cat([drafts.accepted for _, drafts in some]).to(states.device)
        return self.model(states[mine]), accepted[mine]


def train(run: ClassifierRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train a classifier; calling it again resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """
    folder = Folder(out)
    if done := folder.claim("classifier", run):
        return done
    with settled(run, folder.numerics) as run:
        return _train(run, folder, tell)


def _train(run: ClassifierRun, folder: Folder, tell: Tell) -> dict[str, Any]:
    material = gather(run, folder, tell)
    drafter = _drafter(run, material)
    settings: dict[str, Any] = {"batch": run.batch, "tell": tell, "half": in_half(run)}
    target = teacher(run, material, tell)
    learnt, held = (
        drafted(some, target, drafter, run.what, seed=run.seed + k, **settings)
        for k, some in enumerate((material.answers, material.held_out))
    )
    task = _task(run, drafter, material, learnt, held)
    log = take(task, run, folder.checkpoints, tell, material.budget)
    scorer = task.scorer(drafter_fingerprint(run.drafter))
    yes = torch.cat([one.accepted for one in held])
    results: dict[str, Any] = {"train": "classifier", "kind": run.kind, "steps": log[-1]["step"], "log": log}
    results["before"] = scores(torch.ones(len(yes)), yes) | _measured(run, material, drafter, "static-5")

    def write(part: Path) -> None:
        save(scorer, part / "model.safetensors")
        policy = f"{run.kind}?model={part / 'model.safetensors'}"
        results["after"] = scores_of(log) | _measured(run, material, drafter, policy)
        curves(log, part / "curves.png", f"{folder.out.name}: {run.kind} for {run.drafter}")
        text = card(run.kind, folder.out.name, run, results, material)
        (part / "README.md").write_text(text, encoding="utf-8")

    folder.deliver(write)
    folder.finish(results)
    return results


def scores_of(log: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The last point of the curves on held-out text."""
    last = next(row for row in reversed(log) if "f1" in row)
    return {name: last[name] for name in ("f1", "accuracy")}


def _task(
    run: ClassifierRun, drafter: Any, material: Material, learnt: list[Drafted], held: list[Drafted]
) -> DiscoTask | SpecDecPlusTask:
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        if run.kind == "disco":
            return DiscoTask(run, material.answers, learnt, held)
        pairs = (zip(a, b, strict=True) for a, b in ((material.answers, learnt), (material.held_out, held)))
        return SpecDecPlusTask(run, drafter, *(list(pair) for pair in pairs))


def _drafter(run: ClassifierRun, material: Material) -> Any:
    """The drafter whose drafts the classifier stops."""
    from ..models.vocabulary import check_vocabulary

    trust: dict[str, Any] = {"trust_remote_code": run.trust_remote_code}
    check_vocabulary(run.drafter, load_tokenizer(run.drafter, **trust), run.target, material.tokenizer)
    drafter: Any = load_model(run.drafter, device=material.target.device, **trust)
    drafter.requires_grad_(False)
    return drafter


def _measured(run: ClassifierRun, material: Material, drafter: Any, policy: str) -> dict[str, float]:
    return acceptance(
        material.target,
        material.tokenizer,
        drafter,
        material.measuring,
        max_new_tokens=run.max_new_tokens,
        policy=policy,
    )
