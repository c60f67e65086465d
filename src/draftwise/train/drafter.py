"""`draftwise train drafter`: trains a small model to predict the target's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..models.quiet import quiet
from .card import card
from .curves import curves
from .folder import Folder, Material, gather
from .losses import agreement, distance, padded
from .measure import acceptance, speeds
from .numerics import settled
from .settings import DrafterRun
from .steps import take
from .teacher import teacher
from .texts import Answer, Tell


class Distillation:
    """Distillation of the target into a drafter, on the target's own answers (see `steps.Task`)."""

    def __init__(self, run: DrafterRun, drafter: Any, material: Material, tell: Tell) -> None:
        self.model, self.material, self.kind = drafter, material, run.loss
        self.answers = material.answers
        self.teacher = teacher(run, material, tell)
        self.device = drafter.device

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """The mean loss over the answers' tokens."""
        q, p, tokens = self._rows([self.answers[i] for i in examples], teach=self.kind != "ce")
        return distance(self.kind, q, p, tokens)

    def measure(self) -> dict[str, float]:
        """Mean overlap and agreement with the target over the tokens of held-out answers."""
        found: list[tuple[Tensor, Tensor]] = []
        for at in range(0, len(self.material.held_out), 16):
            q, p, _ = self._rows(self.material.held_out[at : at + 16], teach=True)
            if p is not None:
                found.append(agreement(q, p))
        overlap, same = (torch.cat(parts).mean() for parts in zip(*found, strict=True))
        return {"overlap": float(overlap), "agreement": float(same)}

    def _rows(self, batch: Sequence[Answer], *, teach: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Logits of drafter and target, shape (tokens, vocabulary), before each token of the answers."""
        ids, guessed, first = padded(batch, self.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        q = self.model(ids, logits_to_keep=keep, use_cache=False).logits[guessed]
        p = None
        if teach:
            p = self.teacher.logits(batch)
            size = min(q.shape[-1], p.shape[-1])  # vocabularies of one family differ at most by padding
            q, p = q[:, :size], p[:, :size]
        return q, p, ids[:, first + 1 :][guessed]


def train(run: DrafterRun, out: Path, tell: Tell) -> dict[str, Any]:
    """Train a drafter; calling it again resumes an interrupted run. Returns the content of `results.json`.

    Raises:
        UserError: an invalid option, file or model.
    """
    folder = Folder(out)
    if done := folder.claim("drafter", run):
        return done
    with settled(run, folder.numerics) as run:
        return _train(run, folder, tell)


def _train(run: DrafterRun, folder: Folder, tell: Tell) -> dict[str, Any]:
    material = gather(run, folder, tell)
    drafter, dtype = _drafter(run, material)
    drafter.eval()
    before = folder.once("before", lambda: _measured(run, material, drafter))
    log = take(Distillation(run, drafter, material, tell), run, folder.checkpoints, tell, material.budget)
    tell("Measuring", 0, 1)
    drafter.eval().to(dtype)  # the measured model is the stored one
    after = _measured(run, material, drafter.float())
    speed = speeds(material, drafter, tell)
    results = {
        "train": "drafter",
        "before": before,
        "after": after,
        "speed": speed,
        "steps": log[-1]["step"],
        "log": log,
    }

    def write(part: Path) -> None:
        with quiet():
            drafter.to(dtype).save_pretrained(part)
            material.tokenizer.save_pretrained(part)
        curves(log, part / "curves.png", f"{folder.out.name}: {run.loss} to {run.target}")
        text = card("drafter", folder.out.name, run, results, material)
        (part / "README.md").write_text(text, encoding="utf-8")

    folder.deliver(write)
    folder.finish(results)
    tell("Measuring", 1, 1)
    return results


def _measured(run: DrafterRun, material: Material, drafter: Any) -> dict[str, float]:
    """Acceptance on held-out prompts."""
    target, tokenizer, prompts = material.target, material.tokenizer, material.measuring
    return acceptance(target, tokenizer, drafter, prompts, max_new_tokens=run.max_new_tokens)


def _drafter(run: DrafterRun, material: Material) -> tuple[Any, torch.dtype]:
    """The model to train, in float32 on the target's device, and the dtype for storing its weights."""
    from ..models.load import load_model, load_tokenizer
    from ..models.vocabulary import check_vocabulary

    where = material.target.device
    if run.start:
        trust: dict[str, Any] = {"trust_remote_code": run.trust_remote_code}
        check_vocabulary(run.start, load_tokenizer(run.start, **trust), run.target, material.tokenizer)
        drafter = load_model(run.start, dtype="float32", device=where, **trust)
        return drafter, _stored(run.start)
    return _smaller(run, material.target).to(where), torch.bfloat16


def _stored(name: str) -> torch.dtype:
    """The dtype of a model's weights on disk."""
    from transformers import AutoConfig

    from ..models.load import resolve

    found = AutoConfig.from_pretrained(resolve(name)).dtype
    return found if isinstance(found, torch.dtype) else torch.float32


def _smaller(run: DrafterRun, target: Any) -> Any:
    """A new model of the target's architecture with fewer layers and a smaller width."""
    from transformers import AutoModelForCausalLM

    config = type(target.config).from_dict(target.config.to_dict())
    needed = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    if any(not hasattr(config, name) for name in needed):
        raise UserError(
            f"a smaller {config.model_type} cannot be made from its config: "
            "give a model to start from (--start)"
        )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if run.width % head:
        raise UserError(f"width={run.width}: the target's heads are {head} wide; give a multiple of it")
    config.num_hidden_layers, config.hidden_size = run.layers, run.width
    config.num_attention_heads = config.num_key_value_heads = run.width // head
    config.intermediate_size = -(-run.width * 8 // 3 // 64) * 64
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: run.layers]
    config.tie_word_embeddings = True
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        auto: Any = AutoModelForCausalLM  # its methods are untyped
        return auto.from_config(config, dtype=torch.float32)
