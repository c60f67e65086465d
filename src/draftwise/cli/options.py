"""Options that several verbs share, each written once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_type_hints

from typer import Option

from draftwise.errors import DraftwiseWarning, UserError
from draftwise.registry import listed

if TYPE_CHECKING:
    from draftwise.generation.decoder import Decoder

MODELS: dict[str, Any] = {"rich_help_panel": "Models"}
MOST_SHOWN = 40  # letters of an argument in an error
SAMPLING: dict[str, Any] = {"rich_help_panel": "Sampling"}

OWN = "Default: the model's own, else"  # its generation_config

AsJson = Annotated[bool, Option("--json", help="Print machine-readable JSON.")]


def drafters_of(target: str, asked: str | None) -> list[str]:
    """The drafters that `--drafters` names, or the default for this target.

    Raises:
        UserError: a name is empty.
    """
    if asked is None:
        return [*(["zoo:general"] if target == "zoo:target" else []), "ngram", "suffix"]
    if not asked.strip():
        raise UserError("--drafters is empty: write A,B, or none for no drafter")
    return listed(asked, "--drafters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Whose text is written, who drafts it, and who decides."""

    target: Annotated[str, Option(help="Whose text: zoo:NAME, a folder or a Hugging Face id.", **MODELS)] = (
        "zoo:target"
    )
    drafters: Annotated[
        str | None,
        Option(
            help="Who drafts, with commas between: a model, or a name of `draftwise drafters`. "
            "Default: ngram,suffix, and zoo:general before them for zoo:target.",
            **MODELS,
        ),
    ] = None
    policy: Annotated[
        str | None,
        Option(
            help="Who decides: a name of `draftwise policies`. Default: auto, or none without drafters.",
            **MODELS,
        ),
    ] = None
    state: Annotated[
        str | None,
        Option(metavar="FILE", help="Keep what the policy learns in this file, and start from it.", **MODELS),
    ] = None
    dtype: Annotated[str, Option(help="auto, float32, bfloat16 or float16.", **MODELS)] = "auto"
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1 or mps.", **MODELS)] = "auto"
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run the code in the model's folder.", **MODELS)
    ] = False

    @property
    def drafter_names(self) -> list[str]:
        """The drafters as a list, with the default for this target."""
        return drafters_of(self.target, self.drafters)

    @property
    def policy_name(self) -> str:
        """The policy, with the default for these drafters."""
        from draftwise.policies.catalogue import default

        if self.policy is None:
            return default(self.drafter_names)
        if not self.policy.strip():
            raise UserError("--policy is empty: name one of `draftwise policies`, or leave it out")
        return self.policy

    def load(self, *, seed: int | None = 0) -> Decoder:
        """The decoder for these options; `seed` also fixes the policy's own choices, None is a new one."""
        from .show import waiting

        names = self.drafter_names
        with waiting(f"Loading {self.target}"):
            from draftwise import Decoder

            warnings.showwarning = _show_warning
            return Decoder.from_pretrained(
                self.target,
                drafters=names,
                policy=self.policy_name,
                dtype=self.dtype,
                device=self.device,
                trust_remote_code=self.trust_remote_code,
                seed=seed,
                state=self.state,
            )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """The library's own warnings are one line each; others look as always."""
    if issubclass(category, DraftwiseWarning):
        print("warning:", message, file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the text is drawn, and when it ends."""

    max_new_tokens: Annotated[
        int | None, Option(help=f"Write at most so many tokens. {OWN} 256.", **SAMPLING)
    ] = None
    temperature: Annotated[
        float | None,
        Option(help=f"0 takes the likeliest token; 1 draws from the model as it is. {OWN} 0.", **SAMPLING),
    ] = None
    top_k: Annotated[
        int | None, Option(help=f"Draw among the K likeliest; 0 = all. {OWN} 0.", **SAMPLING)
    ] = None
    top_p: Annotated[
        float | None, Option(help=f"Draw among the likeliest that together have P. {OWN} 1.", **SAMPLING)
    ] = None
    min_p: Annotated[
        float | None, Option(help=f"Leave out what is below P times the likeliest. {OWN} 0.", **SAMPLING)
    ] = None
    repetition_penalty: Annotated[
        float | None, Option(help=f"Above 1: against tokens of the prompt and the text. {OWN} 1.", **SAMPLING)
    ] = None
    presence_penalty: Annotated[
        float, Option(help="Above 0: against tokens that the text has.", **SAMPLING)
    ] = 0.0
    frequency_penalty: Annotated[
        float, Option(help="Above 0: against tokens, by how often the text has them.", **SAMPLING)
    ] = 0.0
    seed: Annotated[
        int | None, Option(help="The same seed, the same text. Default: a new one.", **SAMPLING)
    ] = None
    stop: Annotated[
        list[str], Option(help="End the text before this string; may be repeated.", **SAMPLING)
    ] = field(default_factory=list)
    logprobs: Annotated[
        bool,
        Option("--logprobs", help="Report log-probabilities: one a token with --json.", **SAMPLING),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for the decoder: what was asked for, so that the rest is the model's own."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give the command line one option for each field of a verb's dataclass parameters."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for own in signature(verb).parameters.values():
        if own.name in groups:
            parameters += _parameters(groups[own.name])
        else:
            parameters.append(own.replace(annotation=hints[own.name], kind=Parameter.KEYWORD_ONLY))

    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        verb(**given)

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    return command


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name])
        for f in fields(group)
    ]


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def utf8(text: str, what: str) -> str:
    """The text, if it is one: bytes that are not UTF-8 come as lone surrogates, which no one can write again.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = ascii(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")
        raise UserError(f"{what} is not UTF-8 text: {shown}; convert it first") from None
    return text


def standard_input(read: Callable[[], str]) -> str:
    """What `read` takes from standard input.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return utf8(read(), "standard input")
    except UnicodeDecodeError as error:
        raise UserError("standard input is not UTF-8 text: convert it first") from error


def read_prompt(prompt: str) -> str:
    """The prompt itself, or standard input for `-`.

    Raises:
        UserError: there is no text in it.
    """
    text = standard_input(sys.stdin.read).removesuffix("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty: write some text, or - for standard input")
    return text
