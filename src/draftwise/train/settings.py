"""The options of every training: fields of one dataclass, for the command line and YAML files alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..errors import UserError

DTYPES = ("bfloat16", "float16", "float32")
COUNTS = (
    "max_new_tokens",
    "together",
    "steps",
    "batch",
    "pieces",
    "checkpoint_every",
    "log_every",
    "measure_every",
)


def option(default: Any, help: str) -> Any:
    """A field with its help text for the command line."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options of every training.

    Raises:
        UserError: an option out of its range.
    """

    data: tuple[str, ...] = option((), "JSONL files of prompts, with commas between.")
    domain: str = option("", "Only rows whose domain begins so; empty = all.")
    limit: int = option(0, "At most so many prompts of each file, drawn by the seed; 0 = all.")
    held_out: int = option(32, "Prompts that are not trained on, to measure with.")
    seed: int = option(0, "The same seed, the same weights (same machine, versions and threads).")
    target: str = option("zoo:target", "Whose text is learned: zoo:NAME, a folder or a Hugging Face id.")
    raw: bool = option(False, "No chat template around the prompts.")
    trust_remote_code: bool = option(False, "Run the code in a model's folder.")
    licence: str = option("", "The licence of the data, for the model card.")

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("no data: give --data FILE.jsonl with prompts")
        check(self, ("limit", "seed"), lambda x: x >= 0, "give 0 or a whole number above it")
        check(self, ("held_out",), lambda x: x >= 1, "measuring needs at least 1 prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Run):
    """The options of every training on a target's answers: how to generate them, and how to take steps."""

    temperatures: tuple[float, ...] = option(
        (0.0, 0.3, 0.7, 1.0), "The target answers every prompt once at each."
    )
    max_new_tokens: int = option(128, "The target's answers have at most so many tokens.")
    together: int = option(16, "Prompts that the target answers in one batch.")
    answers: str = option("", "A file of answers to use again, or to write. Default: in the folder made.")
    minutes: float = option(
        0.0,
        "Train for so many minutes, the target's answers included, instead of a number of steps; 0 = off.",
    )
    steps: int = option(1000, "Updates of the weights.")
    batch: int = option(16, "Answers in one update.")
    pieces: int = option(1, "Parts that an update is read in, by length: less padding, less memory.")
    rate: float = option(1e-3, "The highest learning rate, of AdamW.")
    warmup: float = option(0.03, "The share of steps in which the rate rises; then it falls as a cosine.")
    decay: float = option(0.0, "Weight decay.")
    clip: float = option(1.0, "The largest norm of a gradient.")
    checkpoint_every: int = option(100, "Steps between two checkpoints.")
    log_every: int = option(10, "Steps between two points of the loss curve.")
    measure_every: int = option(100, "Steps between two points of the acceptance curve.")
    remember: float = option(
        4.0, "GiB for the target's states, kept if answers are gone through more than once; 0 = none."
    )
    precision: str = option(
        "auto", "bfloat16 for the products (autocast), float32, or auto: the faster of them."
    )
    device: str = option("auto", "auto (a GPU where there is one) or cpu.")

    def __post_init__(self) -> None:
        super(Training, self).__post_init__()
        if not self.temperatures:
            raise UserError("temperatures is empty: give numbers with commas, such as 0,0.7")
        for t in self.temperatures:
            if not (isfinite(t) and t >= 0):
                raise UserError(f"temperatures={t}: give 0 (greedy) or a positive number")
        check(self, COUNTS, lambda x: x >= 1, "give a whole number of at least 1")
        check(self, ("rate", "clip"), lambda x: x > 0 and isfinite(x), "give a positive number")
        check(self, ("warmup",), lambda x: 0 <= x < 1, "give a share from 0 to below 1")
        check(
            self,
            ("decay", "remember", "minutes"),
            lambda x: x >= 0 and isfinite(x),
            "give 0 or a positive number",
        )
        choose(self, "precision", ("auto", "float32", "bfloat16"))
        choose(self, "device", ("auto", "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRun(Training):
    """A drafter by self-distillation: one domain, or all of them."""

    start: str = option("", "The model to start from; empty = a new one, as the target but smaller.")
    layers: int = option(1, "Layers of a new one.")
    width: int = option(192, "Width of a new one.")
    loss: str = option("kl", "kl (divergence from the target), tv (total variation) or ce (its tokens).")

    def __post_init__(self) -> None:
        super(DrafterRun, self).__post_init__()
        choose(self, "loss", ("kl", "tv", "ce"))
        check(self, ("layers", "width"), lambda x: x >= 1, "give a whole number of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRun(Training):
    """An EAGLE or EAGLE-3 head on the target's hidden states."""

    start: str = option(
        "", "The head to continue from: zoo:eagle, a folder or a Hugging Face id; empty = a new one."
    )
    kind: str = option("eagle", "eagle, or eagle3: features of three layers, its own output layer.")
    drafted: int = option(0, "EAGLE-3: tokens that it drafts from, the most frequent ones; 0 = all.")
    context: int = option(0, "Tokens of the prompt that it sees while it learns, the last ones; 0 = all.")
    depth: int = option(3, "Draft steps that it learns to take on its own features.")
    fading: float = option(0.8, "The weight of a draft step, as a share of the one before it.")
    share: float = option(0.1, "EAGLE: the weight of the tokens beside that of the features.")
    noise: float = option(0.1, "Features are learned from with so much uniform noise; 0 = none.")
    dtype: str = option("bfloat16", "How the weights are stored: bfloat16, float16 or float32.")

    def __post_init__(self) -> None:
        super(EagleRun, self).__post_init__()
        choose(self, "dtype", DTYPES)
        check(self, ("depth",), lambda x: x >= 1, "give a whole number of at least 1")
        check(self, ("fading",), lambda x: 0 < x <= 1, "give a share above 0 and up to 1")
        check(self, ("drafted", "context"), lambda x: x >= 0, "give 0 or a whole number above it")
        check(self, ("share", "noise"), lambda x: x >= 0 and isfinite(x), "give 0 or a positive number")
        choose(self, "kind", ("eagle", "eagle3"))
        if self.drafted and not self.eagle3:
            raise UserError(
                f"drafted={self.drafted}: only EAGLE-3 drafts from fewer tokens; add --kind eagle3"
            )
        if self.drafted and self.start:
            raise UserError(f"drafted={self.drafted}: the tokens are those of {self.start}; leave it out")

    @property
    def eagle3(self) -> bool:
        """Whether it is EAGLE-3 rather than EAGLE."""
        return self.kind == "eagle3"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaRun(Training):
    """Medusa's heads on the target's last hidden state."""

    heads: int = option(4, "Heads; head k guesses the token k + 1 places after the target's own next one.")
    blocks: int = option(1, "Residual blocks of each.")
    tied: bool = option(False, "Share the target's output layer (blockwise parallel decoding): small files.")
    loss: str = option("kl", "kl (divergence from the target), tv (total variation) or ce (its tokens).")
    fading: float = option(0.8, "The weight of a head, as a share of the one before it.")
    dtype: str = option("bfloat16", "How the weights are stored: bfloat16, float16 or float32.")

    def __post_init__(self) -> None:
        super(MedusaRun, self).__post_init__()
        choose(self, "dtype", DTYPES)
        choose(self, "loss", ("kl", "tv", "ce"))
        check(self, ("heads",), lambda x: x >= 1, "give a whole number of at least 1")
        check(self, ("blocks",), lambda x: x >= 0, "give 0 or a whole number above it")
        check(self, ("fading",), lambda x: 0 < x <= 1, "give a share above 0 and up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierRun(Training):
    """A classifier that stops drafts: DISCO's or SpecDec++'s."""

    kind: str = option("disco", "disco or specdecpp.")
    drafter: str = option("zoo:general", "The model whose drafts it stops.")
    labels: str = option(
        "auto", "agree (both prefer the same token), chance (of a drawn one) or overlap (1 - TV)."
    )
    hidden: int = option(32, "disco: width of its hidden layer; 0 = logistic regression.")
    blocks: int = option(3, "specdecpp: residual blocks.")
    shared: bool = option(True, "specdecpp: one block, gone through so many times.")
    reject_weight: float = option(0.0, "Weight of rejections; 0 = 1 for disco, 6 for specdecpp.")
    keep: float = option(0.15, "specdecpp: the chance that a token of the target's stays in the text read.")
    rate: float = option(3e-3, "The highest learning rate, of AdamW.")

    def __post_init__(self) -> None:
        super(ClassifierRun, self).__post_init__()
        choose(self, "kind", ("disco", "specdecpp"))
        choose(self, "labels", ("auto", "agree", "chance", "overlap"))
        check(self, ("hidden",), lambda x: x >= 0, "give 0 or a whole number above it")
        check(self, ("blocks",), lambda x: 0 <= x <= 64, "give a whole number from 0 to 64")
        check(self, ("reject_weight",), lambda x: x >= 0 and isfinite(x), "give 0 or a positive number")
        check(self, ("keep",), lambda x: 0 <= x < 1, "give a chance from 0 to below 1")

    @property
    def what(self) -> str:
        """The labels; the default depends on the kind."""
        return self.labels if self.labels != "auto" else {"disco": "agree"}.get(self.kind, "chance")

    @property
    def weight(self) -> float:
        """The weight of rejections; the default depends on the kind (6 for SpecDec++)."""
        return self.reject_weight or {"disco": 1.0}.get(self.kind, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun(Run):
    """A text classifier that picks a drafter from the prompt."""

    routes: tuple[str, ...] = option(
        (), "Which drafter suits which domain, as code=zoo:code,gsm8k=zoo:math; domains by how they begin."
    )
    longest: int = option(2, "Terms are runs of up to so many tokens.")
    terms: int = option(20000, "At most so many terms, the most frequent ones.")
    strength: float = option(10.0, "How far weights may grow: C of scikit-learn's LogisticRegression.")

    def __post_init__(self) -> None:
        super(RouterRun, self).__post_init__()
        if not self.routes or not all(all(pair.partition("=")) for pair in self.routes):
            raise UserError(f"routes={','.join(self.routes)!r}: write DOMAIN=DRAFTER,DOMAIN=DRAFTER")
        check(self, ("longest", "terms"), lambda x: x >= 1, "give a whole number of at least 1")
        check(self, ("strength",), lambda x: x > 0 and isfinite(x), "give a positive number")

    @property
    def pairs(self) -> dict[str, str]:
        """Drafters by domain."""
        return dict(pair.split("=", 1) for pair in self.routes)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters to choose from."""
        return tuple(dict.fromkeys(self.pairs.values()))


def check(run: Run, names: tuple[str, ...], good: Any, remedy: str) -> None:
    """Reject an option out of its range."""
    for name in names:
        if not good(getattr(run, name)):
            raise UserError(f"{name}={getattr(run, name)}: {remedy}")


def choose(run: Run, name: str, among: tuple[str, ...]) -> None:
    """Reject an option that is not one of the given words."""
    if getattr(run, name) not in among:
        raise UserError(f"{name}={getattr(run, name)}: choose from {', '.join(among)}")
