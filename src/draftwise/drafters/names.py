"""Checks of drafters by their names alone, before PyTorch is imported or a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from .. import registry
from ..errors import UserError
from ..inputs import expanded
from ..models.gguf.library import check as check_file
from ..models.load import locate
from ..models.zoo import list_zoo
from ..specs import DrafterSpec

IDLE: tuple[registry.Idle, ...] = (
    ("first", lambda given: given.get("instead") or given.get("match"), "leave it out"),
    ("sinks", lambda given: not given.get("window"), "add window"),
    # Of heads: the chain of a model is sampled whatever its siblings.
    ("sample", lambda given: "top" in given and given["width"] > 1, "a tree is never sampled: leave it out"),
    *(
        (name, lambda given: given.get("tree") == "fixed" and given["width"] > 1, "leave it out")
        for name in ("top", "rescore")
    ),
)


def check_drafters(drafters: Sequence[DrafterSpec]) -> None:
    """Check that the models of all drafters exist, and their options, before anything is loaded."""
    for spec in drafters:
        if spec.loaded is not None:
            continue
        if spec.is_gguf:
            check_file(spec.path)
        elif spec.is_model and not expanded(spec.path).is_dir():
            _check_model(spec)
        registry.refuse_idle("drafters", spec, spec.text, IDLE)


def _check_model(spec: DrafterSpec) -> None:
    names, (head, *_) = registry.names("drafters"), spec.text.partition("?")[0].split(":")
    if head == "vllm":
        raise UserError(
            f"drafter {spec.text!r} is one of vLLM's own and drafts inside vLLM alone: see "
            "draftwise.hosts.vllm.vllm_arguments"
        )
    mistyped = head not in ("lm", "zoo") and "/" not in head
    if mistyped and (hint := registry.meant(head, [*names, *(model.name for model in list_zoo())])):
        raise UserError(f"unknown drafter {spec.text!r}: {hint}name a model as lm:{spec.path}")
    try:
        locate(spec.path)
    except UserError as error:
        if any(sign in spec.path for sign in ":/\\"):
            raise
        choices = ", ".join(names)
        raise UserError(
            f"unknown drafter {spec.text!r}: choose from {choices}, or name a model ({error})"
        ) from None
