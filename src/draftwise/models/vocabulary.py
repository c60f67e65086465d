"""Whether two tokenizers have one vocabulary."""

from __future__ import annotations

from typing import Any

from ..errors import UserError


def embedded(model: Any) -> int:
    """How many ids a model can read."""
    table = model.get_input_embeddings()
    return int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])


def disagreement(theirs: Any, ours: Any) -> str | None:
    """A token that two tokenizers have different ids for, or only one of them knows; None if there is none.

    Ids after the smaller vocabulary that one side alone knows are padding.
    """
    a, b = theirs.get_vocab(), ours.get_vocab()
    base = min(theirs.vocab_size, ours.vocab_size)
    wrong = next((token for token in a.keys() & b.keys() if a[token] != b[token]), None)
    if wrong is not None:
        return str(wrong)
    return next((token for token in a.keys() ^ b.keys() if a.get(token, b.get(token)) < base), None)


def check_vocabulary(drafter: str, theirs: Any, target: str, ours: Any) -> None:
    """Reject a drafter whose token ids have other meanings; ids known to one side only are padding."""
    token = disagreement(theirs, ours)
    if token is not None:
        a, b = len(theirs.get_vocab()), len(ours.get_vocab())
        raise UserError(
            f"the drafter {drafter} ({a} tokens) and the target {target} ({b} tokens) have "
            f"different vocabularies (they disagree on {token!r}): choose a drafter of the target's family"
        )
