"""What a classifier decides that was trained beforehand: when one drafter stops, or who drafts at all."""

from __future__ import annotations

from collections.abc import Sequence

from ... import registry
from ...core.arms import Arm, Stop
from ...errors import UserError
from ...models.load import weights_of
from ..arms import one, positive
from ..classifiers.routing import load as load_router
from ..classifiers.stopping import Scorer, load
from ..routed import RoutedPolicy
from .compose import Method, fixed, recorder


def disco(
    drafters: Sequence[str],
    *,
    model: str = "zoo:disco",
    drafter: str = "",
    length: int = 40,
    threshold: float = 0.5,
) -> Method:
    """Draft until a classifier's chance that the token is accepted falls below 0.5 (DISCO, arXiv 2405.04304).

    `model` is the classifier: a folder that `draftwise train classifier` made, its file, or the bundled one,
    which was trained for `zoo:general`. It reads the ten largest probabilities, their
    entropy and the place in the output. The paper tunes threshold and greatest length for speed on each data
    set and reports neither: 0.5 is where the classifier turns from yes to no, and 40 is SVIP's length. A
    drafter that looks tokens up gives the two probabilities that it knows.

    Raises:
        UserError: no file, one that cannot be used, or an option out of its range.
    """
    scorer = _load("disco", model, threshold)
    who = one(drafters, drafter)
    return fixed(Arm(who, positive(length), stop=Stop("disco", threshold, scorer)))


def specdecpp(
    drafters: Sequence[str],
    *,
    model: str = "zoo:specdecpp",
    drafter: str = "",
    length: int = 20,
    shortest: int = 2,
    threshold: float = 0.7,
) -> Method:
    """Draft until a head on the drafter finds a rejection likelier than 0.7 (SpecDec++, arXiv 2405.19715).

    `model` is the head: a folder that `draftwise train classifier` made, its file, or the bundled one, which
    was trained for `zoo:general`. Drafting ends when 1 less the product of the predicted acceptances exceeds
    the threshold. The paper shows that such a threshold is the
    best rule and leaves its value open: 0.7 is its code's example (0.3 its evaluation's), and so are the
    bounds of 2 and 20 tokens. A token's prediction reads the state that the token leaves behind, which is
    there once the next one is drafted: it lags by one.

    Raises:
        UserError: no file, one that cannot be used, a drafter without hidden states, or an option out of its
            range.
    """
    scorer = _load("specdecpp", model, threshold)
    who = one(drafters, drafter)
    name = registry.parse(who).name
    if name in registry.names("drafters") and not hasattr(registry.load("drafters", name), "hidden_states"):
        raise UserError(
            f"specdecpp reads a drafter's hidden states and {who} has none: name a model (drafter=)"
        )
    if not 1 <= shortest <= positive(length):
        raise UserError(f"specdecpp?shortest={shortest}&length={length}: give 1 <= shortest <= length")
    return fixed(Arm(who, length, stop=Stop("specdecpp", threshold, scorer, shortest)))


def router(drafters: Sequence[str], path: str, *, length: int = 5) -> Method:
    """Let a classifier of prompts pick the drafter for the whole text (MetaSD's router, arXiv 2604.05417).

    `path` is what `draftwise train router` made. Drafts have 5 tokens, as MetaSD's.

    Raises:
        UserError: the router cannot be used, or knows a drafter that is not at hand.
    """
    chosen = load_router(weights_of(path))
    if missing := [name for name in chosen.drafters if name not in drafters]:
        raise UserError(
            f"router:{path} picks among {', '.join(chosen.drafters)}, and {missing[0]} is not at hand: "
            "give them all as drafters"
        )
    arms = tuple(Arm(name, positive(length)) for name in chosen.drafters)
    return Method(RoutedPolicy(arms, chosen), recorder(arms, "block-efficiency"))


def _load(name: str, model: str, threshold: float) -> Scorer:
    if not 0.0 <= threshold <= 1.0:
        raise UserError(f"{name}?threshold={threshold:g}: give a chance from 0 to 1")
    return load(weights_of(model), name)
