"""Decodes one small model inside its own `generate`, with and without drafts, and compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from random import Random
from typing import Any

import torch
from torch import Tensor

from draftwise import UserError, transformers_generate
from draftwise.core.drafts import Draft, Job
from draftwise.models.probe.small import VOCAB
from tests.architectures.judge import CRASH, DIFFERENT, EQUAL, REFUSED, TIE, TIED, Verdict, reason
from tests.core.turns import Stateless

from .cases import Case, build
from .forms import Given
from .given import given, own

NEW = 14  # tokens written


class Ignored(Exception):
    """The class' own `generate` never calls the decoding method that it is given."""


@dataclass
class Guesser(Stateless):
    """Drafts the true texts with some tokens spoilt."""

    name_or_path: str
    spoil: float
    rows: list[list[int]] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(3))
    drafted: int = 0

    def one(self, job: Job) -> Draft:
        """A row's own text from here on, as far as it is known."""
        new = job.request.tokens[job.request.prompt_length :]
        right = next((row[len(new) :] for row in self.rows if row[: len(new)] == new), [])
        length = self.random.randint(0, min(job.length, len(right)))
        self.drafted += length
        return Draft.chain(
            [t if self.random.random() > self.spoil else (t + 1) % VOCAB for t in right[:length]]
        )


def judge(case: Case, ways: Any = ()) -> Verdict:
    """What comes of a model alone and in a batch."""
    verdict = Verdict(case.name)
    try:
        made = build(case)
        verdict.kind = type(made).__name__
        inputs = given(made)
        made = lively(case, inputs)
    except Exception as error:  # Transformers itself cannot make it, or decode with it
        verdict.why = reason(error)
        return verdict
    for name in ways or WAYS:
        try:
            asked = WAYS[name](made, inputs)
            if asked is None:
                continue
            verdict.ways[name], why = compare(made, *asked)
        except Ignored as error:
            verdict.ways, verdict.why = {}, str(error)
            return verdict
        except UserError as error:
            verdict.ways[name], why = REFUSED, str(error)
        except Exception as error:
            verdict.ways[name], why = CRASH, reason(error)
        verdict.why = verdict.why or (f"{name}: {why}" if why else "")
    return verdict


SCALES = ((2.0, 0.25), (6.0, 1.0), (2.0, 1.0), (3.0, 0.1), (4.0, 0.25), (3.0, 0.5))
LIVELY = 5  # different tokens of a text


def lively(case: Case, inputs: Given) -> Any:
    """The case's model, with weights that write a text which moves; the liveliest of some."""
    best = (-1, 0)
    for seed, (scale, embeddings) in enumerate(SCALES):
        made = build(case, scale, embeddings, seed)
        life = len(set(own(made, inputs, NEW)[0, -NEW:].flatten().tolist()))
        if life >= LIVELY:
            return made
        best = max(best, (life, -seed))
    return build(case, *SCALES[-best[1]], -best[1])


def compare(made: Any, inputs: Given, more: Given) -> tuple[str, str]:
    """The text with drafts against the model's own."""
    truth = own(made, inputs, NEW, **more)
    rows = [row[-NEW:] for row in truth.tolist()]
    good = Guesser("good", 0.1, rows)
    team = [good, Guesser("bad", 0.8, rows), "ngram"]
    adaptive = transformers_generate(drafters=team, policy="random", tokenizer=object())
    calls: list[int] = []

    @wraps(adaptive)
    def told(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return adaptive(*args, **kwargs)

    found = own(made, inputs, NEW, **more, custom_generate=told)
    if not calls:
        raise Ignored("its own `generate` ignores `custom_generate`")
    if not good.drafted:
        return DIFFERENT, "nothing was drafted"
    if found.shape == truth.shape and torch.equal(found, truth):
        return EQUAL, ""
    return _difference(made, inputs, more, truth, found)


def _difference(made: Any, inputs: Given, more: Given, truth: Tensor, found: Tensor) -> tuple[str, str]:
    """A tie where the first tokens that differ are as likely as each other but for rounding."""
    if found.shape != truth.shape:
        return DIFFERENT, f"shape {tuple(found.shape)} for {tuple(truth.shape)}"
    at = int((found != truth).any(0).nonzero()[0])
    row = int((found != truth)[:, at].nonzero()[0])
    kept = {"output_logits": True, "return_dict_in_generate": True}
    step = made.generate(**inputs, **more | kept, max_new_tokens=NEW, do_sample=False).logits[
        at - truth.shape[1] + NEW
    ][row]
    a, b = step[truth[row, at]], step[found[row, at]]
    if bool((a - b).abs() < TIED * step.abs().max()):
        return TIE, ""
    return DIFFERENT, f"row {row}: token {at - truth.shape[1] + NEW} of {NEW}"


def alone(made: Any, inputs: Given) -> tuple[Given, Given] | None:
    """One prompt."""
    return inputs, {}


def batch(made: Any, inputs: Given) -> tuple[Given, Given] | None:
    """Two rows, where the inputs are by row: another text, and padding on the left of a prompt."""
    if any(
        key.endswith(("grid_thw", "grids", "grid_hws")) or isinstance(v, list) for key, v in inputs.items()
    ):
        both = {k: twice(v, v) for k, v in inputs.items()}
    else:
        floats = {k for k, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point()}
        both = {k: twice(v, v.flip(-1) if k in floats else v) for k, v in inputs.items()}
    if "input_ids" in both:
        ids = torch.as_tensor(both["input_ids"]).clone()
        ids[1, -3:] = (ids[1, -3:] + 1) % 50
        both["input_ids"] = ids
        if not made.config.is_encoder_decoder:
            both = padded(both)
    try:
        own(made, both, 2)
    except Exception:
        return None
    return both, {}


def twice(value: Any, other: Any) -> Any:
    """An input of two rows."""
    if isinstance(value, Tensor):
        return torch.cat([value, other])
    return [*value, *value] if isinstance(value, list) else value


def padded(both: Given) -> Given:
    """The second row is two tokens shorter: padded on the left."""
    ids = both["input_ids"]
    mask = torch.ones_like(ids)
    made = ids.clone()
    made[1, 2:], made[1, :2], mask[1, :2] = ids[1, :-2], 0, 0
    types = {k: torch.cat([v[:1], v[1:].roll(2, -1)]) for k, v in both.items() if k.endswith("type_ids")}
    return both | types | {"input_ids": made, "attention_mask": mask}


def several(made: Any, inputs: Given) -> tuple[Given, Given] | None:
    """Several samples of one prompt, with scores."""
    more = {"num_return_sequences": 2, "output_scores": True, "do_sample": True, "top_k": 1}
    try:
        own(made, inputs, 2, **more)
    except Exception:
        return None
    return inputs, more


WAYS = {"alone": alone, "batch": batch, "several": several}
