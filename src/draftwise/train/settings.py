"""The options of every training: fields of one dataclass, for the command line and YAML files alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from ..errors import UserError


class Range(NamedTuple):
    """The values that an option accepts, and the remedy for others."""

    holds: Callable[[Any], bool]
    remedy: str


COUNT = Range(lambda x: x >= 1, "give a whole number of at least 1")
NATURAL = Range(lambda x: x >= 0, "give 0 or a whole number above it")
POSITIVE = Range(lambda x: x > 0 and isfinite(x), "give a positive number")
NOT_NEGATIVE = Range(lambda x: x >= 0 and isfinite(x), "give 0 or a positive number")
FADING = Range(lambda x: 0 < x <= 1, "give a share above 0 and up to 1")


# The defaults, help texts and words of options of several trainings.
LOSS = "kl", "kl (divergence from the target), tv (total variation) or ce (its tokens).", ("kl", "tv", "ce")
DTYPES = ("bfloat16", "float16", "float32")
DTYPE = "bfloat16", "How the weights are stored: bfloat16, float16 or float32.", DTYPES


def option(default: Any, help: str, allowed: Range | tuple[str, ...] | None = None) -> Any:
    """A field with its help text for the command line, and the range or the words that it accepts."""
    return field(default=default, metadata={"help": help, "allowed": allowed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options of every training.

    Raises:
        UserError: an option out of its range.
    """

    data: tuple[str, ...] = option((), "JSONL files of prompts, with commas between.")
    domain: str = option("", "Only rows whose domain begins so; empty = all.")
    limit: int = option(0, "At most so many prompts of each file, drawn by the seed; 0 = all.", NATURAL)
    held_out: int = option(
        32,
        "Prompts that are not trained on, to measure with.",
        Range(lambda x: x >= 1, "measuring needs at least 1 prompt"),
    )
    seed: int = option(0, "The same seed, the same weights (same machine, versions and threads).", NATURAL)
    target: str = option("zoo:target", "Whose text is learned: zoo:NAME, a folder or a Hugging Face id.")
    raw: bool = option(False, "No chat template around the prompts.")
    trust_remote_code: bool = option(False, "Run the code in a model's folder.")
    licence: str = option("", "The licence of the data, for the model card.")

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("no data: give --data FILE.jsonl with prompts")
        for one in fields(self):
            value, allowed = getattr(self, one.name), one.metadata["allowed"]
            if isinstance(allowed, Range):
                if not allowed.holds(value):
                    raise UserError(f"{one.name}={value}: {allowed.remedy}")
            elif allowed and value not in allowed:
                raise UserError(f"{one.name}={value}: choose from {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Run):
    """The options of every training on a target's answers: how to generate them, and how to take steps."""

    temperatures: tuple[float, ...] = option(
        (0.0, 0.3, 0.7, 1.0), "The target answers every prompt once at each."
    )
    max_new_tokens: int = option(128, "The target's answers have at most so many tokens.", COUNT)
    together: int = option(16, "Prompts that the target answers in one batch.", COUNT)
    answers: str = option("", "A file of answers to use again, or to write. Default: in the folder made.")
    minutes: float = option(
        0.0,
        "Train for so many minutes, the target's answers included, instead of a number of steps; 0 = off.",
        NOT_NEGATIVE,
    )
    steps: int = option(1000, "Updates of the weights.", COUNT)
    batch: int = option(16, "Answers in one update.", COUNT)
    pieces: int = option(1, "Parts that an update is read in, by length: less padding, less memory.", COUNT)
    rate: float = option(1e-3, "The highest learning rate, of AdamW.", POSITIVE)
    warmup: float = option(
        0.03,
        "The share of steps in which the rate rises; then it falls as a cosine.",
        Range(lambda x: 0 <= x < 1, "give a share from 0 to below 1"),
    )
    decay: float = option(0.0, "Weight decay.", NOT_NEGATIVE)
    clip: float = option(1.0, "The largest norm of a gradient.", POSITIVE)
    checkpoint_every: int = option(100, "Steps between two checkpoints.", COUNT)
    log_every: int = option(10, "Steps between two points of the loss curve.", COUNT)
    measure_every: int = option(100, "Steps between two points of the acceptance curve.", COUNT)
    remember: float = option(
        4.0,
        "GiB for the target's states, kept if answers are gone through more than once; 0 = none.",
        NOT_NEGATIVE,
    )
    precision: str = option(
        "auto",
        "bfloat16 for the products (autocast), float32, or auto: the faster of them.",
        ("auto", "float32", "bfloat16"),
    )
    device: str = option("auto", "auto (a GPU where there is one) or cpu.", ("auto", "cpu"))

    def __post_init__(self) -> None:
        super(Training, self).__post_init__()
        if not self.temperatures:
            raise UserError("temperatures is empty: give numbers with commas, such as 0,0.7")
        for t in self.temperatures:
            if not NOT_NEGATIVE.holds(t):
                raise UserError(f"temperatures={t}: give 0 (greedy) or a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRun(Training):
    """A drafter by self-distillation: one domain, or all of them."""

    start: str = option("", "The model to start from; empty = a new one, as the target but smaller.")
    layers: int = option(1, "Layers of a new one.", COUNT)
    width: int = option(192, "Width of a new one.", COUNT)
    loss: str = option(*LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRun(Training):
    """An EAGLE or EAGLE-3 head on the target's hidden states."""

    start: str = option(
        "", "The head to continue from: zoo:eagle, a folder or a Hugging Face id; empty = a new one."
    )
    kind: str = option(
        "eagle3", "eagle3: features of three layers, its own output layer; or eagle.", ("eagle3", "eagle")
    )
    drafted: int = option(
        0,
        "EAGLE-3: tokens that it drafts from, the most frequent; 0 = 8192 at most, or those of --start.",
        NATURAL,
    )
    context: int = option(
        0, "Tokens of the prompt that it sees while it learns, the last ones; 0 = all.", NATURAL
    )
    depth: int = option(3, "Draft steps that it learns to take on its own features.", COUNT)
    shallow: float = option(
        0.5,
        "The share of the steps, at first, that learn one draft step alone: several times as fast.",
        Range(lambda x: 0 <= x <= 1, "give a share from 0 to 1"),
    )
    fading: float = option(0.8, "The weight of a draft step, as a share of the one before it.", FADING)
    share: float = option(0.1, "EAGLE: the weight of the tokens beside that of the features.", NOT_NEGATIVE)
    noise: float = option(
        0.1, "EAGLE: features are learned from with so much uniform noise; 0 = none.", NOT_NEGATIVE
    )
    dtype: str = option(*DTYPE)

    def __post_init__(self) -> None:
        super(EagleRun, self).__post_init__()
        if self.drafted and not self.eagle3:
            raise UserError(
                f"drafted={self.drafted}: an EAGLE head drafts from all tokens; leave it out, or add "
                "--kind eagle3"
            )

    @property
    def eagle3(self) -> bool:
        return self.kind == "eagle3"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaRun(Training):
    """Medusa's heads on the target's last hidden state."""

    heads: int = option(
        4, "Heads; head k guesses the token k + 1 places after the target's own next one.", COUNT
    )
    blocks: int = option(1, "Residual blocks of each.", NATURAL)
    tied: bool = option(False, "Share the target's output layer (blockwise parallel decoding): small files.")
    loss: str = option(*LOSS)
    fading: float = option(0.8, "The weight of a head, as a share of the one before it.", FADING)
    dtype: str = option(*DTYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierRun(Training):
    """A classifier that stops drafts: DISCO's or SpecDec++'s."""

    kind: str = option("disco", "disco or specdecpp.", ("disco", "specdecpp"))
    drafter: str = option("zoo:general", "The model whose drafts it stops.")
    labels: str = option(
        "auto",
        "agree (both prefer the same token), chance (of a sampled one) or overlap (1 - TV).",
        ("auto", "agree", "chance", "overlap"),
    )
    hidden: int = option(32, "disco: width of its hidden layer; 0 = logistic regression.", NATURAL)
    blocks: int = option(
        3,
        "specdecpp: residual blocks.",
        Range(lambda x: 0 <= x <= 64, "give a whole number from 0 to 64"),
    )
    shared: bool = option(True, "specdecpp: one block, gone through so many times.")
    reject_weight: float = option(
        0.0, "Weight of rejections; 0 = 1 for disco, 6 for specdecpp.", NOT_NEGATIVE
    )
    keep: float = option(
        0.15,
        "specdecpp: the chance that a token of the target's stays in the text read.",
        Range(lambda x: 0 <= x < 1, "give a chance from 0 to below 1"),
    )
    rate: float = option(3e-3, "The highest learning rate, of AdamW.", POSITIVE)

    @property
    def labelling(self) -> str:
        """The kind of labels; the default depends on the kind of classifier."""
        return self.labels if self.labels != "auto" else {"disco": "agree"}.get(self.kind, "chance")

    @property
    def weight(self) -> float:
        """The weight of rejections; the default depends on the kind of classifier (6 for SpecDec++)."""
        return self.reject_weight or {"disco": 1.0}.get(self.kind, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun(Run):
    """A text classifier that picks a drafter from the prompt."""

    routes: tuple[str, ...] = option(
        (), "Which drafter suits which domain, as code=zoo:code,gsm8k=zoo:math; domains by how they begin."
    )
    longest: int = option(2, "Terms are runs of up to so many tokens.", COUNT)
    terms: int = option(20000, "At most so many terms, the most frequent ones.", COUNT)
    strength: float = option(
        10.0, "How far weights may grow: C of scikit-learn's LogisticRegression.", POSITIVE
    )

    def __post_init__(self) -> None:
        super(RouterRun, self).__post_init__()
        if not self.routes or not all(all(pair.partition("=")) for pair in self.routes):
            raise UserError(f"routes={','.join(self.routes)!r}: write DOMAIN=DRAFTER,DOMAIN=DRAFTER")

    @property
    def pairs(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.routes)


R = TypeVar("R", bound=Run)


def read_options(kind: type[R], config: Path | None, options: Mapping[str, Any]) -> R:
    """Read options from a YAML file and from the command line, which takes precedence.

    Raises:
        UserError: the file cannot be read, or an option is unknown or invalid.
    """
    values = _read_yaml(config) if config else {}
    types = get_type_hints(kind)
    if unknown := sorted(values.keys() - types.keys()):
        raise UserError(f"{config}: no option {unknown[0]!r}; choose from {', '.join(sorted(types))}")
    values |= {name: value for name, value in options.items() if value is not None}
    return kind(**{name: _convert(name, value, types[name]) for name, value in values.items()})


def as_plain(run: Run) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(run).items()}


def list_defaults(kind: type[Run]) -> dict[str, tuple[Any, str]]:
    """Return every option's default and help text, by name."""
    return {f.name: (f.default, f.metadata["help"]) for f in fields(kind)}


def check_packages() -> None:
    """Raise a UserError unless the packages that only training needs are installed."""
    missing = [name for name in ("accelerate", "matplotlib", "sklearn", "yaml") if find_spec(name) is None]
    if missing:
        raise UserError(f"training needs {', '.join(missing)}: pip install 'draftwise[train]'")


def _read_yaml(path: Path) -> dict[str, Any]:
    check_packages()
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the options in {path}: {reason}; name a YAML file") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} has no options: write one `name: value` a line")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _convert(name: str, value: Any, kind: Any) -> Any:
    """A value of an option's type; lists may be written with commas."""
    if kind in (bool, str):
        if isinstance(value, kind):
            return value
        raise UserError(f"{name}={value!r}: write {'a text' if kind is str else 'true or false'}")
    if kind in (int, float):
        usable = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        try:
            if usable and not (kind is int and isinstance(value, float) and value != int(value)):
                return kind(value)
        except ValueError:
            pass  # refused below
        raise UserError(
            f"{name}={value!r} is not {'a whole number' if kind is int else 'a number'}: correct it"
        )
    items = [x.strip() for x in value.split(",")] if isinstance(value, str) else value
    items = items if isinstance(items, (list, tuple)) else [items]
    if any(x is None or x == "" for x in items):
        raise UserError(f"{name} has an empty part: give A,B")
    return tuple(_convert(name, x, float) if kind == tuple[float, ...] else str(x) for x in items)
