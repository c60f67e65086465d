"""Options that several verbs share, each written once, and the names that a shell completes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import Option

from draftwise import registry
from draftwise.errors import UserError
from draftwise.inputs import once
from draftwise.models.zoo import default_drafters, default_target, list_zoo
from draftwise.specs import (
    DrafterSpec,
    LoadOptions,
    ModelSpec,
    PolicySpec,
    parse_drafters,
    parse_policy,
    parse_target,
    split_names,
)

from .progress import stages

if TYPE_CHECKING:
    from draftwise.generation.decoder import Decoder


def complete(*groups: str, several: bool = False) -> Callable[[str], list[str]]:
    """Return what completes a name of these groups (`zoo` are the bundled models), or the last of several."""

    def names(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        candidates = (_zoo() if group == "zoo" else registry.names(group) for group in groups)
        return [f"{before}{comma}{name}" for some in candidates for name in some if name.startswith(last)]

    return names


def _zoo() -> list[str]:
    return [model.name for model in list_zoo()]


MODELS: dict[str, Any] = {"rich_help_panel": "Models"}

DEFAULT_TARGET = default_target()
OWN = "Default: from the model's generation_config, else"

PrefixCache = Annotated[
    float,
    Option(help="MiB for what was read of ended texts, for later ones that begin alike; 0: none.", **MODELS),
]
Raw = Annotated[bool, Option("--raw", help="Do not apply the chat template.")]
Target = Annotated[
    str,
    Option(
        help="The target model: zoo:NAME, a folder, a Hugging Face id or a GGUF file.",
        autocompletion=complete("zoo"),
        **MODELS,
    ),
]
Policies = Annotated[
    str,
    Option(
        help="Comma-separated policies: names from `draftwise policies`.",
        autocompletion=complete("policies", several=True),
    ),
]
Compile = Annotated[
    str,
    Option(
        help="Run models as compiled graphs: auto (in the background, at once if on disk), kept (only if "
        "on disk), on (before anything else) or off.",
        autocompletion=lambda: ["auto", "kept", "on", "off"],
        **MODELS,
    ),
]
TrustRemoteCode = Annotated[
    bool, Option("--trust-remote-code", help="Run the Python code in the model's folder.")
]


def drafters_of(target: str, names: str | None) -> list[str]:
    """The drafters that `--drafters` names, or the default for this target."""
    if names is None:
        return default_drafters(target)
    if not names.strip():
        raise UserError("--drafters is empty: give A,B, or none for plain decoding")
    return split_names(names, "--drafters")


def parse_models(options: Any) -> tuple[ModelSpec, tuple[DrafterSpec, ...]]:
    """Return target and drafters of a verb's options, the default drafters where none are named."""
    load = LoadOptions(
        dtype=options.dtype,
        device=options.device,
        compile=options.compile,
        exact=options.exact,
        trust_remote_code=options.trust_remote_code,
    )
    drafters = parse_drafters(drafters_of(options.target, options.drafters), load)
    return parse_target(options.target, load), drafters


def distinct(names: str, option: str) -> list[str]:
    """Comma-separated names, each once; none where nothing is given."""
    split = split_names(names, option)
    once(option, split)
    return split


def policy_names(text: str) -> tuple[str, ...]:
    """Policies separated by commas; or by blanks, and then commas do not separate.

    A comma inside an option (`lengths=2,8`) does not separate: no policy's name follows it.
    """
    text = re.sub(r",\s+", ",", text.strip())
    if len(parts := text.split()) > 1:
        return _checked(parts)
    names: list[str] = []
    for part in text.split(","):
        name = part.partition("?")[0].partition(":")[0]
        is_policy = name in registry.names("policies") or name.rpartition("-")[0] == "static"
        if names and "?" in names[-1] and not is_policy:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not any(names):
        raise UserError("no policy is named: give names of `draftwise policies`, such as auto,static-5")
    if not all(names):
        raise UserError(f"policies {text!r} has an empty name: give A,B")
    return _checked(names)


def _checked(policies: Sequence[str]) -> tuple[str, ...]:
    for policy in policies:
        parse_policy(policy)
    once("policies", policies)
    return tuple(policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions:
    """The target and the drafters, and how they are loaded."""

    section: ClassVar[str] = "Models"
    target: Target = DEFAULT_TARGET
    drafters: Annotated[
        str | None,
        Option(
            help="Comma-separated drafters: models, or names from `draftwise drafters`. "
            "Default: ngram,suffix, and a bundled drafter before them for zoo:target and zoo:smollm2.",
            autocompletion=complete("drafters", "zoo", several=True),
        ),
    ] = None
    dtype: Annotated[str, "Precision: auto, float32, bfloat16 or float16."] = "auto"
    device: Annotated[str, "auto, cpu, cuda, cuda:1 or mps."] = "auto"
    exact: Annotated[
        bool,
        Option(
            "--exact", help="Text depends on no draft and no other text, bit for bit, in half precision too."
        ),
    ] = False
    trust_remote_code: TrustRemoteCode = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions(LoadingOptions):
    """Prompts, models and how they decode: of measurements."""

    workload: Annotated[
        str,
        "spec-bench, mixed, phased, drift, hostile, humaneval:PATH, mbpp:PATH, gsm8k:PATH, "
        "or a JSONL file of prompts.",
    ] = "spec-bench"
    limit: Annotated[int, "Number of prompts at most; 0: all."] = 0
    per_category: Annotated[int, "Prompts of each category; 0: all."] = 0
    max_new_tokens: Annotated[int, "Longest text in tokens."] = 128
    temperature: Annotated[float, "Sampling temperature; 0 is greedy decoding."] = 0.0
    seed: Annotated[int, "Random seed of sampling, workloads and the order of work."] = 0
    raw: Raw = False
    compile: Compile = "kept"


@dataclass(frozen=True, kw_only=True)
class ModelOptions(LoadingOptions):
    """The target, the drafters and the policy."""

    section: ClassVar[str] = "Models"
    policy: Annotated[
        str | None,
        Option(
            help="The policy: a name from `draftwise policies`. Default: auto, or none without drafters.",
            autocompletion=complete("policies"),
        ),
    ] = None
    state: Annotated[
        str,
        Option(
            metavar="FILE|auto|off",
            help="Save what the policy learns to this file, and start from it. auto: for the policy auto, "
            "one in the user's cache; off: nothing is kept.",
        ),
    ] = "auto"
    compile: Compile = "auto"
    trials: Annotated[
        str,
        Option(
            help="Time what is faster on this machine: auto (3 seconds at most, the rest at later starts), "
            "off (saved answers only) or all (everything again, as long as it takes).",
            autocompletion=lambda: ["auto", "off", "all"],
        ),
    ] = "auto"
    threads: Annotated[
        int,
        Option(
            min=0,
            max=1024,
            help="Threads of models on a CPU; 0: all cores, fewer while other work needs them.",
        ),
    ] = 0

    @cached_property
    def specs(self) -> tuple[ModelSpec, tuple[DrafterSpec, ...], PolicySpec]:
        """Target, drafters and policy, with the defaults for this target and these drafters."""
        from draftwise.policies.catalogue import default

        if self.policy is not None and not self.policy.strip():
            raise UserError("--policy is empty: give a name from `draftwise policies`, or leave it out")
        target, drafters = parse_models(self)
        return target, drafters, parse_policy(self.policy or default(spec.text for spec in drafters))

    @property
    def drafter_names(self) -> list[str]:
        return [spec.text for spec in self.specs[1]]

    def check(self) -> None:
        """Refuse wrong names and options at once: importing PyTorch takes seconds."""
        from draftwise.drafters.names import check_drafters
        from draftwise.models.load import check_dtype
        from draftwise.policies.catalogue import method
        from draftwise.state.cached import check_state

        _, drafters, policy = self.specs
        check_drafters(drafters)
        method(policy, self.drafter_names)
        check_dtype(self.dtype)
        check_state(self.state)

    def load(self, *, seed: int | None = 0, prefix_cache: float = 0) -> Decoder:
        """The decoder for these options; `seed` also fixes the policy's choices, None draws one."""
        self.check()
        with stages(f"loading {self.target}"):
            from draftwise import Decoder
            from draftwise.models.runner.prefix_cache import bounded
            from draftwise.models.threads import fix_threads
            from draftwise.models.verdicts import start

            bounded(prefix_cache)
            if self.threads:
                fix_threads(self.threads)
            with start(self.trials):
                return Decoder.from_specs(*self.specs, seed=seed, state=self.state, prefix_cache=prefix_cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are sampled, and when the text ends."""

    section: ClassVar[str] = "Sampling"
    max_new_tokens: Annotated[int | None, f"Longest text in tokens. {OWN} 256."] = None
    temperature: Annotated[float | None, f"Sampling temperature; 0 is greedy decoding. {OWN} 0."] = None
    top_k: Annotated[int | None, f"Keep the K most probable tokens; 0: all. {OWN} 0."] = None
    top_p: Annotated[
        float | None,
        f"Nucleus sampling: keep the smallest set of tokens with total probability >= P. {OWN} 1.",
    ] = None
    min_p: Annotated[
        float | None, f"Drop tokens less probable than P times the most probable one. {OWN} 0."
    ] = None
    repetition_penalty: Annotated[
        float | None, f"Above 1 lowers the logits of tokens in prompt and text. {OWN} 1."
    ] = None
    presence_penalty: Annotated[float, "Subtract this from the logits of tokens in the text."] = 0.0
    frequency_penalty: Annotated[
        float, "Subtract this from the logits of tokens, for each time they occur in the text."
    ] = 0.0
    seed: Annotated[int | None, "Random seed; the same seed gives the same text. Default: a new one."] = None
    stop: Annotated[list[str], "End the text before this string; may be given several times."] = field(
        default_factory=list
    )
    logprobs: Annotated[
        bool,
        Option("--logprobs", help="Report the log-probability of the text, and of each token with --json."),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for the decoder; options that were not given keep the model's defaults."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check(self) -> None:
        """See that all values can be used, before models are loaded."""
        from draftwise.core.sampling import Sampling
        from draftwise.generation.text import stop_strings

        sampling = {option.name for option in fields(Sampling)}
        Sampling(**{name: value for name, value in self.settings().items() if name in sampling})
        stop_strings(self.stop)
