"""The configuration passed to vLLM: one class name that contains Draftwise's options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from ... import registry
from ...errors import UserError
from ...policies.catalogue import default, method
from ...specs import parse_drafter, split_names
from ..follow import check_chains
from .names import is_own, own_model

HOME = "draftwise.hosts.vllm.Proposer"
EXTENSION = "draftwise.hosts.vllm.Extension"  # of vLLM's workers, where a model of its own drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The drafters by name, the policy, its state file, and the seed of its choices."""

    drafters: tuple[str, ...] = ("ngram", "suffix")
    policy: str = ""
    state: str = ""
    seed: int = 0

    @classmethod
    def parse(cls, query: str) -> Options:
        """Parse `key=value&key=value`; drafters are separated by commas.

        Raises:
            UserError: an unknown option, or an invalid value.
        """
        names = [f.name for f in fields(cls)]
        try:
            texts = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        except ValueError:
            raise UserError(f"cannot read {query!r}: write the options as key=value&key=value") from None
        if unknown := sorted(texts.keys() - set(names)):
            raise UserError(f"unknown option {', '.join(unknown)}: choose from {', '.join(names)}")
        options: dict[str, Any] = dict(texts)
        if "drafters" in texts:
            options["drafters"] = tuple(split_names(texts["drafters"], "drafters"))
        if "seed" in texts:
            try:
                options["seed"] = int(texts["seed"])
            except ValueError:
                raise UserError(f"seed={texts['seed']}: give a whole number") from None
        return cls(**options)

    @property
    def name(self) -> str:
        """The proposer's class name that vLLM loads."""
        return self.name_in(HOME)

    def name_in(self, home: str) -> str:
        """Return a class name with the options; their dots are encoded, as the last one begins the class."""
        values = {"drafters": ",".join(self.drafters), "policy": self.policy, "state": self.state}
        values |= {"seed": str(self.seed) if self.seed else ""}
        pairs = [f"{key}={quote(value, safe=',:/')}" for key, value in values.items() if value]
        return f"{home}?{'&'.join(pairs).replace('.', '%2E')}"

    @property
    def longest(self) -> int:
        """The longest draft that the policy may request."""
        own_model(self.drafters)
        for drafter in self.drafters:
            if not is_own(drafter):
                _stands_alone(drafter)
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
    return {"method": "custom_class", "model": options.name, "num_speculative_tokens": longest}


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
    own = own_model(options.drafters)
    if own is None:
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
    wrong = [d for d in names if not isinstance(d, str) or not d or "," in d]
    if wrong:
        raise UserError(
            f"drafter {wrong[0]!r}: vLLM's workers load drafters by name; give a name without comma"
        )
    file = "" if state is None else str(Path(state).expanduser().resolve())
    options = Options(drafters=tuple(names), policy=policy, state=file, seed=seed)
    longest = options.longest
    if not longest:
        raise UserError("this policy never drafts: start vLLM without a speculative_config")
    return options, longest


def _stands_alone(drafter: str) -> None:
    """Reject a drafter that needs the target's internals, such as a head on its hidden states."""
    spec = parse_drafter(drafter)
    if not spec.is_model and "target" in inspect.signature(registry.load("drafters", spec.name)).parameters:
        raise UserError(f"drafter {drafter}: it reads the target's hidden states, which vLLM keeps to itself")
