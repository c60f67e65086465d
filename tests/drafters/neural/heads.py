"""Heads for tiny targets: bad ones with random weights, and good ones that learned the target's own text."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.published import eagle
from draftwise.models.heads.eagle import Eagle, Eagle3, new_eagle
from draftwise.models.heads.medusa import Medusa, new_medusa
from draftwise.models.heads.mtp import Mtp, Roles
from draftwise.testing.distributions import Distribution, shape
from tests.distributions import check_distribution
from tests.exactness.test_exact_hf import PROMPT, SETTINGS
from tests.tiny import VOCAB, model, own_text

STEPS = 80  # of training


@cache
def target(name: str = "llama", scale: float = 8.0, attention: str = "sdpa") -> Any:
    return model(name, scale=scale, attention=attention)


def texts(made: Any) -> Tensor:
    """The prompts of the tests and what the target writes after them, 48 tokens each."""
    from tests.targets.test_hf import prompts

    return torch.tensor([[*p, *own_text(made, p, 48)][:48] for p in prompts(6)])


def features(made: Any, ids: Tensor, layers: tuple[int, ...]) -> Tensor:
    with torch.no_grad():
        states = made(ids, output_hidden_states=True).hidden_states
    return torch.cat([states[k] for k in layers], -1)


def chosen(head: Eagle) -> Eagle:
    """An EAGLE-3 head that drafts all tokens but the first three, in two halves that lie apart."""
    if isinstance(head, Eagle3) and head.ids is not None:
        head.choose([i for i in range(3, VOCAB) if i != 11])
    return head


def random_eagle(made: Any, *, eagle3: bool = False, drafted: int = 0) -> Eagle:
    torch.manual_seed(7)
    return chosen(new_eagle(made, eagle3=eagle3, drafted=drafted)).eval()


def trained_eagle(made: Any, *, eagle3: bool = False, drafted: int = 0) -> Eagle:
    """A head trained to guess the target's text, two tokens deep: from the target's states and its own."""
    head = random_eagle(made, eagle3=eagle3, drafted=drafted)
    head.load_state_dict(eagle_weights(made, eagle3, drafted))
    return head


@cache
def eagle_weights(made: Any, eagle3: bool, drafted: int) -> dict[str, Tensor]:
    """The weights of a trained head: learned once, for heads that each test may change."""
    head = random_eagle(made, eagle3=eagle3, drafted=drafted).train()
    ids = texts(made)
    seen = features(made, ids, head.layers_read)
    where = torch.full((VOCAB,), -100)
    known = torch.arange(VOCAB) if head.ids is None else head.ids
    where[known] = torch.arange(len(known))
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        first = head(ids[:, 1:], head.read(seen[:, :-1]))
        second = head(ids[:, 2:], first[:, :-1])
        loss: Any = torch.zeros(())
        for states, start in ((first, 2), (second, 3)):
            logits = head.logits(states[:, : ids.shape[1] - start])
            loss = loss + cross_entropy(logits.flatten(0, 1), where[ids[:, start:]].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return weights_of(head)


def weights_of(head: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}


def random_mtp(made: Any) -> Mtp:
    """A layer of multi-token prediction like the target's last, with random weights."""
    torch.manual_seed(7)
    like = made.get_decoder().layers[-1]
    layer = type(like)(made.config, 0).to(next(like.parameters()).dtype)
    found = Mtp(made, layer, like.input_layernorm, Roles()).to(next(like.parameters()).dtype)
    return found.eval()


def random_published(reads: Any, kind: str) -> Any:
    """A drafter with a random head in the format of `speculators`."""
    from tests.models.heads import folders

    with TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place) / kind
        write = folders.dflash if kind == "dflash" else partial(folders.eagle3, kind=kind)
        return eagle(str(write(folder)), reads)


def random_medusa(made: Any, *, heads: int = 4, tied: bool = False) -> Medusa:
    torch.manual_seed(7)
    found = new_medusa(made, heads=heads, tied=tied)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.normal_()
    return found.eval()


def trained_medusa(made: Any, *, tied: bool = False) -> Medusa:
    """Heads trained to guess the target's text from its last states."""
    found = new_medusa(made, heads=4, tied=tied).eval()
    found.load_state_dict(medusa_weights(made, tied))
    return found


@cache
def medusa_weights(made: Any, tied: bool) -> dict[str, Tensor]:
    """The weights of trained heads, learned once."""
    torch.manual_seed(7)
    found = new_medusa(made, heads=4, tied=tied).train()
    ids = texts(made)
    seen = features(made, ids, (-1,))
    optimiser = torch.optim.AdamW(found.parameters(), lr=1e-2)
    for _ in range(STEPS):
        loss: Any = torch.zeros(())
        for k, logits in enumerate(found(seen)):
            loss = loss + cross_entropy(logits[:, : -2 - k].flatten(0, 1), ids[:, 2 + k :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return weights_of(found)


def tree_distribution(distribution: Distribution, settings: str, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every text of `length` tokens that three likely tokens a place leave possible."""
    out: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, p in out.items():
            history = [*PROMPT, *text]
            row = shape(distribution(history), history, len(PROMPT), narrow(settings, length))
            longer |= {(*text, int(t)): p * float(row[t]) for t in row.nonzero()[0]}
        out = longer
    return out


def narrow(settings: str, length: int) -> Sampling:
    """Settings that leave three tokens a place, so that longer texts can be counted."""
    return replace(SETTINGS[settings], top_k=3, top_p=1.0, min_p=0.0, max_new_tokens=length)


def check_sampled(
    loop: Loop,
    distribution: Distribution,
    settings: str = "shaped",
    *,
    length: int = 5,
    n: int = 700,
    beside: int = 0,
) -> None:
    """Texts have the target's distribution: long enough for drafts of three tokens after a first round
    without one. A text of `beside` tokens is open meanwhile."""
    if beside:
        loop.add([7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=beside, temperature=1.0))
    expected = tree_distribution(distribution, settings, length)
    check_distribution(loop, PROMPT, narrow(settings, length), n, expected, batch=100)
