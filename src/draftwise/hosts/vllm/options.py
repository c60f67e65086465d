"""The configuration passed to vLLM: a class name with options, among which are vLLM's own proposers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import registry
from ...core.sampling import whole_number
from ...errors import UserError
from ...inputs import expanded
from ...policies.catalogue import default, method
from ...specs import parse_drafter, split_names
from ..follow import check_chains

HOME = "draftwise.hosts.vllm.Proposer"
EXTENSION = "draftwise.hosts.vllm.Extension"  # of vLLM's workers, where a model of its own drafts
PREFIX = "vllm:"  # of the names of vLLM's own proposers
MODELS = {
    "draft_model": True,
    "eagle": True,
    "eagle3": True,
    "mtp": False,
}  # with a path of their own, or not
NAMES = ", ".join([f"{PREFIX}{name}{':PATH' if path else ''}" for name, path in MODELS.items()])
YES, NO = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True)
class EngineDrafter:
    """One of vLLM's own proposers: its method, the model's path, and options.

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
        """Whether vLLM loads a model for it, of which an engine has one."""
        return self.method in MODELS

    @classmethod
    def parse(cls, name: str) -> EngineDrafter:
        """Return the proposer that a name such as `vllm:eagle3:PATH?sample=false` means.

        Raises:
            UserError: an unknown proposer or option, or a path that is missing or one too many.
        """
        spec = registry.parse(name)
        method, _, path = spec.path.partition(":")
        if method not in (*MODELS, "ngram"):
            raise UserError(f"drafter {name}: choose from {PREFIX}ngram, {NAMES}")
        if MODELS.get(method) and not path:
            raise UserError(f"drafter {name}: give the model's folder, as {PREFIX}{method}:PATH")
        if path and not MODELS.get(method):
            raise UserError(f"drafter {name}: it has no model of its own; write {PREFIX}{method}")
        options = {"sample": "true"} if method in MODELS else {"min": "5", "max": "5"}
        if unknown := sorted(spec.options.keys() - options):
            raise UserError(f"drafter {name}: unknown option {unknown[0]}; choose from {', '.join(options)}")
        options |= spec.options
        for key in options.keys() & {"min", "max"}:
            if not options[key].isdigit() or not int(options[key]):
                raise UserError(f"drafter {name}: {key}={options[key]}; give a whole number from 1")
        sample, least, most = options.get("sample", "true"), *(int(options.get(k, 5)) for k in ("min", "max"))
        if sample.lower() not in YES + NO:
            raise UserError(f"drafter {name}: sample={sample}; give true or false")
        if least > most:
            raise UserError(f"drafter {name}: min={least} is above max={most}; give min <= max")
        return cls(name, method, path, least, most, sample.lower() in YES)


def is_own(name: str) -> bool:
    """Return whether a drafter's name is one of vLLM's proposers."""
    return name.startswith(PREFIX)


def own_model(names: Iterable[str]) -> EngineDrafter | None:
    """Return the one proposer with a model among the names; None if there is none.

    Raises:
        UserError: there are two, or a name cannot be read.
    """
    models = [own for own in map(EngineDrafter.parse, filter(is_own, names)) if own.is_model]
    if len(models) > 1:
        raise UserError(
            f"drafters {models[0].text} and {models[1].text}: an engine of vLLM loads one model to draft "
            "with; leave one out, or name it without vllm:"
        )
    return models[0] if models else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The drafters by name, the policy, its state file, and the seed of its choices."""

    drafters: tuple[str, ...] = ("ngram", "suffix")
    policy: str = ""
    state: str = ""
    seed: int = 0

    @classmethod
    def parse(cls, name: str) -> Options:
        """Parse a class name that ends in `?key=value&key=value`; drafters are separated by commas.

        Raises:
            UserError: an unknown option, or an invalid value.
        """
        names, options = [f.name for f in fields(cls)], dict[str, Any](registry.parse(name).options)
        if unknown := sorted(options.keys() - set(names)):
            raise UserError(f"unknown option {', '.join(unknown)}: choose from {', '.join(names)}")
        if "drafters" in options:
            options["drafters"] = tuple(split_names(options["drafters"], "drafters"))
        try:
            options["seed"] = int(options.get("seed", 0))
        except ValueError:
            raise UserError(f"seed={options['seed']}: give a whole number") from None
        return cls(**options)

    def name_in(self, home: str) -> str:
        """Return a class name with the options; their dots are encoded, as the last one begins the class."""
        values = {"drafters": ",".join(self.drafters), "policy": self.policy, "state": self.state}
        values |= {"seed": str(self.seed) if self.seed else ""}
        pairs = [f"{key}={quote(value, safe=',:/')}" for key, value in values.items() if value]
        return f"{home}?{'&'.join(pairs).replace('.', '%2E')}"

    @property
    def longest(self) -> int:
        """The longest draft that the policy may request.

        Raises:
            UserError: options that vLLM cannot follow.
        """
        own_model(self.drafters)
        for drafter in self.drafters:
            if not is_own(drafter):
                _check_stands_alone(drafter)
        policy = method(self.policy or default(self.drafters), list(self.drafters)).policy
        check_chains(policy, self.drafters)
        return max(arm.length for arm in policy.arms)


def vllm_config(
    *,
    drafters: str | Sequence[str] = ("ngram", "suffix"),
    policy: str = "",
    state: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The `speculative_config` that runs Draftwise inside vLLM: `LLM(..., speculative_config=...)`.

    Drafters, policy and the `state` file are named as for `Decoder.from_pretrained`. As JSON it is the
    argument of `vllm serve --speculative-config`. It can be made without vLLM.

    Raises:
        UserError: an unknown policy or option, a policy that never drafts, or drafts trees, or a drafter
            whose model vLLM loads: see `vllm_arguments`.
    """
    options, longest = _options(drafters, policy, state, seed)
    if (own := own_model(options.drafters)) is not None:
        raise UserError(
            f"drafter {own.text}: vLLM loads its model; pass LLM(MODEL, **vllm_arguments(drafters=...)), of "
            "draftwise.hosts.vllm"
        )
    return {"method": "custom_class", "model": options.name_in(HOME), "num_speculative_tokens": longest}


def vllm_arguments(
    *,
    drafters: str | Sequence[str] = ("ngram", "suffix"),
    policy: str = "",
    state: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The arguments that run Draftwise inside vLLM with vLLM's own drafters: `LLM(MODEL, **arguments)`.

    One of the drafters may be a model that vLLM loads and whose KV cache it manages:
    `vllm:draft_model:PATH`, `vllm:eagle:PATH`, `vllm:eagle3:PATH`, `vllm:mtp`. Without such a drafter it is
    `vllm_config` under its name.

    Raises:
        UserError: as `vllm_config`; or two such models.
    """
    options, longest = _options(drafters, policy, state, seed)
    if (own := own_model(options.drafters)) is None:
        return {"speculative_config": vllm_config(drafters=drafters, policy=policy, state=state, seed=seed)}
    config: dict[str, Any] = {"method": own.method, "num_speculative_tokens": longest}
    if own.path:
        from ...models.load import resolve

        config["model"] = resolve(own.path)
    if own.sample:
        config["draft_sample_method"] = "probabilistic"
    return {
        "speculative_config": config,
        "worker_extension_cls": options.name_in(EXTENSION),
        "async_scheduling": False,  # the policy decides from the step's own tokens
    }


def _options(
    drafters: str | Sequence[str], policy: str, state: str | Path | None, seed: int
) -> tuple[Options, int]:
    """Return the options, checked, and the longest draft that they may request."""
    names = split_names(drafters, "drafters")
    if wrong := [d for d in names if not isinstance(d, str) or not d or "," in d]:
        raise UserError(
            f"drafter {wrong[0]!r}: vLLM's workers load drafters by name; give a name without comma"
        )
    if not isinstance(policy, str):
        raise UserError(f"policy {policy!r}: vLLM's workers load it by name; give that of an installed one")
    file = "" if state is None else str(expanded(state).resolve())
    options = Options(drafters=tuple(names), policy=policy, state=file, seed=whole_number("seed", seed))
    if not (longest := options.longest):
        raise UserError("this policy never drafts: start vLLM without a speculative_config")
    return options, longest


def _check_stands_alone(drafter: str) -> None:
    """Reject a drafter that needs the target's internals, such as a head on its hidden states."""
    spec = parse_drafter(drafter)
    if not spec.is_model and "target" in inspect.signature(registry.load("drafters", spec.name)).parameters:
        raise UserError(f"drafter {drafter}: it reads the target's hidden states, which vLLM keeps to itself")
