"""Policies with a trained classifier: when a draft stops, or which drafter writes a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ... import registry
from ...core.arms import Arm, Stop
from ...errors import UserError
from ...models.load import weights_of
from ...specs import parse_drafter
from ..arms import one, positive
from ..classifiers.routing import RoutedPolicy
from ..classifiers.routing import load as load_router
from ..classifiers.stopping import Scorer, load
from .compose import Method, fixed, recorder
from .options import Drafter, Length, Longest, Threshold

Model = Annotated[str, "a folder that `draftwise train classifier` wrote, its file, or zoo:NAME"]


def disco(
    drafters: Sequence[str],
    *,
    model: Model = "zoo:disco",
    drafter: Drafter = "",
    length: Longest = 40,
    threshold: Threshold = 0.5,
) -> Method:
    """Drafts until a classifier predicts an acceptance probability below the threshold.

    The classifier reads the ten largest probabilities, their entropy and the position in the output. The
    bundled one was trained for `zoo:general`. The paper tunes threshold and longest length on each data set
    and reports neither: 0.5 is the decision boundary, and 40 is SVIP's length. A lookup drafter gives the two
    probabilities that it knows.

    Source: DISCO (arXiv 2405.04304).

    Raises:
        UserError: no file, one that cannot be used, or an option out of its range.
    """
    scorer = _load("disco", model, threshold)
    who = one(drafters, drafter)
    return fixed(Arm(who, positive(length), stop=Stop("disco", threshold, scorer)))


def specdecpp(
    drafters: Sequence[str],
    *,
    model: Model = "zoo:specdecpp",
    drafter: Drafter = "",
    length: Longest = 20,
    shortest: Annotated[int, "tokens in a draft at least"] = 2,
    threshold: Threshold = 0.7,
) -> Method:
    """Drafts until a head on the drafter predicts a rejection with more than the threshold's probability.

    The bundled head was trained for `zoo:general`. Drafting ends when 1 minus the product of the predicted
    acceptance probabilities exceeds the threshold. The paper proves that a threshold is optimal and leaves
    its value open: 0.7 is the example in its code (0.3 in its evaluation), with bounds of 2 and 20 tokens.
    The prediction for a token reads the hidden state after it, which exists once the next token is drafted:
    it lags by one.

    Source: SpecDec++ (arXiv 2405.19715).

    Raises:
        UserError: no file, one that cannot be used, a drafter without hidden states, or an option out of its
            range.
    """
    scorer = _load("specdecpp", model, threshold)
    who = one(drafters, drafter)
    spec = parse_drafter(who)
    if spec.name != "lm" and not hasattr(registry.load("drafters", spec.name), "hidden_states"):
        raise UserError(
            f"specdecpp reads a drafter's hidden states and {who} has none: name a model (drafter=)"
        )
    if not 1 <= shortest <= positive(length):
        raise UserError(f"specdecpp?shortest={shortest}&length={length}: give 1 <= shortest <= length")
    return fixed(Arm(who, length, stop=Stop("specdecpp", threshold, scorer, shortest)))


def router(drafters: Sequence[str], path: str, *, length: Length = 5) -> Method:
    """A text classifier chooses the drafter of a request from its prompt.

    `path` is a folder that `draftwise train router` wrote.

    Source: MetaSD (arXiv 2604.05417), router.

    Raises:
        UserError: the router cannot be used, or names a drafter that was not given.
    """
    chosen = load_router(weights_of(path))
    if missing := [name for name in chosen.drafters if name not in drafters]:
        raise UserError(
            f"router:{path} chooses among {', '.join(chosen.drafters)}, and {missing[0]} is not among the "
            "drafters: give all of them"
        )
    arms = tuple(Arm(name, positive(length)) for name in chosen.drafters)
    return Method(RoutedPolicy(arms, chosen), recorder(arms, "block-efficiency"))


def _load(name: str, model: str, threshold: float) -> Scorer:
    if not 0.0 <= threshold <= 1.0:
        raise UserError(f"{name}?threshold={threshold:g}: give a probability from 0 to 1")
    try:
        return load(weights_of(model), name)
    except UserError as error:
        kind = "" if name == "disco" else f" --kind {name}"
        raise UserError(
            f"{error}; or train one: draftwise train classifier{kind} --drafter MODEL --data FILE "
            f"--out FOLDER, then {name}?model=FOLDER"
        ) from error
