"""Names of vLLM's own proposers: `vllm:ngram`, `vllm:draft_model:PATH`, `vllm:eagle3:PATH`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ... import registry
from ...errors import UserError

PREFIX = "vllm:"
MODELS = {
    "draft_model": True,
    "eagle": True,
    "eagle3": True,
    "mtp": False,
}  # with a path of their own, or not
LOOKUPS = ("ngram",)
NAMES = ", ".join([f"{PREFIX}{name}{':PATH' if path else ''}" for name, path in MODELS.items()])
YES, NO = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True)
class EngineDrafter:
    """One of vLLM's proposers: its method, the model's path, and options.

    `least` and `most` are the lengths of the matches of `ngram`. With `sample` a model draws its drafts where
    the request samples, and vLLM verifies them with their probabilities.
    """

    text: str
    method: str
    path: str = ""
    least: int = 5
    most: int = 5
    sample: bool = True

    @property
    def is_model(self) -> bool:
        """Return whether vLLM loads a model for it, of which an engine has one."""
        return self.method in MODELS


def is_own(name: str) -> bool:
    """Return whether a drafter's name is one of vLLM's proposers."""
    return name.startswith(PREFIX)


def parse_own(name: str) -> EngineDrafter:
    """Return the proposer that a name such as `vllm:eagle3:PATH?sample=false` means.

    Raises:
        UserError: an unknown proposer or option, or a path that is missing or one too many.
    """
    spec = registry.parse(name)
    method, _, path = spec.path.partition(":")
    if method not in MODELS and method not in LOOKUPS:
        raise UserError(f"drafter {name}: choose from {PREFIX}ngram, {NAMES}")
    if MODELS.get(method) and not path:
        raise UserError(f"drafter {name}: give the model's folder, as {PREFIX}{method}:PATH")
    if path and not MODELS.get(method):
        raise UserError(f"drafter {name}: it has no model of its own; write {PREFIX}{method}")
    options = ("sample",) if method in MODELS else ("min", "max")
    if unknown := sorted(set(spec.options) - set(options)):
        raise UserError(f"drafter {name}: unknown option {unknown[0]}; choose from {', '.join(options)}")
    if method in MODELS:
        return EngineDrafter(name, method, path, sample=_yes(name, spec.options))
    least, most = (_number(name, spec.options, key) for key in options)
    if least > most:
        raise UserError(f"drafter {name}: min={least} is above max={most}; give min <= max")
    return EngineDrafter(name, method, least=least, most=most)


def own_model(names: Iterable[str]) -> EngineDrafter | None:
    """Return the one proposer with a model among the names; None if there is none.

    Raises:
        UserError: there are two, or a name cannot be read.
    """
    models = [own for own in map(parse_own, filter(is_own, names)) if own.is_model]
    if len(models) > 1:
        raise UserError(
            f"drafters {models[0].text} and {models[1].text}: an engine of vLLM loads one model to draft "
            "with; leave one out, or name it without vllm:"
        )
    return models[0] if models else None


def _number(name: str, options: Mapping[str, str], key: str) -> int:
    text = options.get(key, "5")
    if not text.isdigit() or not int(text):
        raise UserError(f"drafter {name}: {key}={text}; give a whole number from 1")
    return int(text)


def _yes(name: str, options: Mapping[str, str]) -> bool:
    text = options.get("sample", "true").lower()
    if text not in YES + NO:
        raise UserError(f"drafter {name}: sample={text}; give true or false")
    return text in YES
