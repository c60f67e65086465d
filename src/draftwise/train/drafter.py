"""`draftwise train drafter`: trains a small model to predict the target's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..models.stages import quiet
from .folder import Material, load_drafter
from .results import Session, training
from .settings import DrafterRun
from .teacher import DistillationTask, agreement, distance, padded
from .texts import Answer, Tell


class Distillation(DistillationTask):
    """Distillation of the target into a drafter, on the target's own answers (see `steps.Task`)."""

    def __init__(self, run: DrafterRun, drafter: Any, material: Material, tell: Tell) -> None:
        super().__init__(run, drafter, material, tell, ())

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        q, p, tokens = self._rows([self.answers[i] for i in examples], teach=self.run.loss != "ce")
        return distance(self.run.loss, q, p, tokens)

    def measure(self) -> dict[str, float]:
        """Mean overlap and agreement with the target over the tokens of held-out answers."""
        pairs = [agreement(q, p) for q, p, _ in map(self._rows, self.held_out) if p is not None]
        overlap, same = (torch.cat(parts).mean() for parts in zip(*pairs, strict=True))
        return {"overlap": float(overlap), "agreement": float(same)}

    def _rows(self, batch: Sequence[Answer], *, teach: bool = True) -> tuple[Tensor, Tensor | None, Tensor]:
        """Logits of drafter and target, shape (tokens, vocabulary), before each token of the answers."""
        ids, predicted, first = padded(batch, self.model.device)
        keep = torch.arange(first, ids.shape[1] - 1, device=ids.device)
        q = self.model(ids, logits_to_keep=keep, use_cache=False).logits[predicted]
        p = None
        if teach:
            p = self.teacher.logits(batch)
            size = min(q.shape[-1], p.shape[-1])  # vocabularies of one family differ at most by padding
            q, p = q[:, :size], p[:, :size]
        return q, p, ids[:, first + 1 :][predicted]


def prepared(run: DrafterRun, target: Any, tokenizer: Any) -> tuple[Any, torch.dtype]:
    """Return the model that training starts from, in float32, and the precision to store it in."""
    if run.start:
        started = load_drafter(run.start, run, target, tokenizer, dtype="float32")
        return started.eval(), _stored_dtype(run)
    return _smaller(run, target).to(target.device).eval(), torch.bfloat16


@training("drafter", prepared)
def train(session: Session[DrafterRun]) -> dict[str, Any]:
    """Train a drafter."""
    run, material = session.run, session.material
    drafter, dtype = material.prepared
    before = session.folder.once("before", lambda: session.measure(drafter))
    log = session.take_steps(Distillation(run, drafter, material, session.tell))

    def save(part: Path) -> None:
        with quiet():
            drafter.eval().to(dtype).save_pretrained(part)
            material.tokenizer.save_pretrained(part)
        drafter.float()  # the measured model is the stored one

    def measure(part: Path) -> dict[str, Any]:
        return session.measure_drafter(drafter)

    title = f"{run.loss} to {run.target}"
    return session.deliver(log, title=title, save=save, measure=measure, before=before)


def _stored_dtype(run: DrafterRun) -> torch.dtype:
    """The precision of the model that training starts from."""
    from transformers import AutoConfig

    from ..models.load import resolve

    trust = run.trust_remote_code
    dtype = AutoConfig.from_pretrained(resolve(run.start), trust_remote_code=trust).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


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
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = [kinds[i % len(kinds)] for i in range(run.layers)]
    config.tie_word_embeddings = True
    with torch.random.fork_rng():
        torch.manual_seed(run.seed)
        auto: Any = AutoModelForCausalLM  # its methods are untyped
        return auto.from_config(config, dtype=torch.float32)
