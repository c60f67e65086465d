"""Decodes one small model in every way that Draftwise knows, and holds the texts against its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.models.cache_names import cache_in, name_for
from draftwise.models.probe.small import POSITIONS, VOCAB
from draftwise.models.runner.positions import pretended
from draftwise.models.weights import timing
from draftwise.models.weights.packed import arrange
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone, Stateless

from .cases import Case, build, own_text

NEW = 16  # tokens written to each prompt
PIECES = 8  # tokens of a prompt read at once, so that prompts come in pieces
TIED = 1e-4  # of the largest logit: a smaller margin between two tokens is rounding
EQUAL, TIE, REFUSED, DIFFERENT, CRASH = "equal", "tie", "refused", "different", "crash"
PARTED = "parted"  # the text is the model's own without a cache; with one, its own code loses the text

Text = list[int]


@dataclass
class Verdict:
    """What came of one model: by way of decoding, and in one word.

    `why` is the first trouble's reason. `apart`, `stateful` and `steps` tell how its rows are read.
    """

    name: str
    kind: str = ""
    ways: dict[str, str] = field(default_factory=dict)
    why: str = ""
    apart: bool = False
    stateful: bool = False
    steps: bool = False

    @property
    def word(self) -> str:
        """The worst of all ways; a model that is read, if not as a tree, is not refused."""
        if not self.ways:
            return "not built"
        found = [CRASH, DIFFERENT, *([REFUSED] if self.ways.get("alone") == REFUSED else []), PARTED, TIE]
        return next((word for word in found if word in self.ways.values()), EQUAL)


@dataclass
class Guesser(Stateless):
    """Drafts the true text with some tokens spoilt, as chains or as trees with false branches."""

    texts: dict[tuple[int, ...], Text]
    spoil: float
    tree: bool = False
    random: Random = field(default_factory=lambda: Random(3))

    def one(self, job: Job) -> Draft:
        r = job.request
        rest = self.texts[tuple(r.tokens[: r.prompt_length])][r.position :]
        length = self.random.randint(0, min(job.length, len(rest)))
        right = [t if self.random.random() > self.spoil else (t + 1) % VOCAB for t in rest[:length]]
        if not self.tree or not right:
            return Draft.chain(right)
        tokens, parents, last = list[int](), list[int](), -1
        for token in right:  # a false sibling before or after each true token
            pair = [token, self.random.randrange(3, VOCAB - 1)]
            self.random.shuffle(pair)
            parents += [last, last]
            tokens += pair
            last = len(tokens) - 2 + pair.index(token)
        return Draft(tuple(tokens), tuple(parents))


def prompts() -> list[Text]:
    """Short and long ones, beyond windows and pieces; the third begins like the second."""
    draw = Random(1)
    made = [[draw.randrange(3, VOCAB - 1) for _ in range(n)] for n in (3, 26, 30, 12, 1)]
    made[2][:20] = made[1][:20]
    return made


def judge(case: Case, ways: Sequence[str] = ()) -> Verdict:
    """The verdict on one case, decoded in these ways (all without any)."""
    verdict = Verdict(case.name)
    try:
        made = build(case)
        verdict.kind = type(made).__name__
        truth = {tuple(p): own_text(made, p, NEW) for p in prompts()}
    except Exception as error:  # Transformers itself cannot make it, or decode with it
        verdict.why = reason(error)
        return verdict
    for name in ways or WAYS:
        try:
            verdict.ways[name], why = WAYS[name](made, dict(truth))
        except UserError as error:
            verdict.ways[name], why = REFUSED, str(error)
        except Exception as error:
            verdict.ways[name], why = CRASH, reason(error)
        verdict.why = verdict.why or (f"{name}: {why}" if why else "")
        if name == "alone" and verdict.ways[name] in (REFUSED, CRASH):
            return verdict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftwiseWarning)
        rows = HFTarget(made).runner
    verdict.apart, verdict.stateful, verdict.steps = not rows.together, rows.stateful, rows.steps
    return verdict


def reason(error: Exception) -> str:
    """One line about an exception."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


Way = Callable[[Any, dict[tuple[int, ...], Text]], tuple[str, str]]


def run(
    made: Any,
    truth: dict[tuple[int, ...], Text],
    asked: list[Text],
    team: dict[str, Any],
    arms: Sequence[Arm],
    batch: int,
) -> tuple[str, str]:
    """Decode the prompts asked for, and compare each with what the model itself writes."""
    policy = Anyone(tuple(arms))
    loop = Loop(HFTarget(made, chunk=PIECES), team, policy, policy)
    texts: dict[int, Text] = {}
    longest = max(len(truth[tuple(p)]) for p in asked)
    for round in loop.run(asked, Sampling(max_new_tokens=longest), batch=batch):
        if round.fault:
            return (REFUSED if "cannot read a tree" in round.fault else CRASH), round.fault
        texts.setdefault(round.request, []).extend(round.tokens)
    said = EQUAL
    for number, prompt in enumerate(asked):
        own, text = truth[tuple(prompt)], texts[number]
        if own != text:
            at = next((i for i, (a, b) in enumerate(zip(own, text, strict=False)) if a != b), len(text))
            if at < len(text) and tied(made, [*prompt, *own[:at]], own[at], text[at]):
                said = said if said == PARTED else TIE
            elif loses(made, len(prompt) + at) and text == own_text(made, prompt, len(own), use_cache=False):
                said = PARTED
            else:
                return DIFFERENT, f"prompt of {len(prompt)}: token {at} of {len(own)}"
    return said, ""


def loses(made: Any, length: int) -> bool:
    """Whether the model's own `generate` has lost what it read before this length: at a change of its rotary
    frequencies it drops its cache, to read the text anew, and then reads the last token alone."""
    text = made.config.get_text_config(decoder=True)
    border = int(getattr(text, "original_max_position_embeddings", None) or length)
    if length <= border:
        return False
    ids = torch.zeros(1, border + 1, dtype=torch.long)
    prepare = made.prepare_inputs_for_generation
    more: Any = {"attention_mask": torch.ones_like(ids), "use_cache": True, "next_sequence_length": 1}
    fed = prepare(ids, **more, **{name_for(prepare): pretended(border)})
    return cache_in(fed) is None and fed["input_ids"].shape[1] == 1


@torch.inference_mode()
def tied(made: Any, text: Text, a: int, b: int) -> bool:
    """Whether two tokens are as likely as each other but for rounding, by a plain forward over the text."""
    logits = made(input_ids=torch.tensor([text])).logits[0, -1]
    return bool((logits[a] - logits[b]).abs() < TIED * logits.abs().max())


def alone(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """One prompt at a time without drafts."""
    return run(made, truth, prompts(), {}, [Arm("none", 0)], 1)


def chains(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """One at a time; chains of good, spoilt and looked-up tokens."""
    return run(made, truth, prompts(), guessers(truth), CHAINS, 1)


def uneven(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """Three at a time, joining when another ends, with chains."""
    return run(made, truth, prompts(), guessers(truth), CHAINS, 3)


def even(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """Prompts of the same length, without drafts: rows stay side by side."""
    asked = [[*prompts()[3][:-1], last] for last in (5, 6, 7)]
    truth |= {tuple(p): own_text(made, p, NEW // 2) for p in asked}
    return run(made, truth, asked, {}, [Arm("none", 0)], 3)


def models(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """The model drafts for itself: as a drafter it must do no harm, even where it is refused."""
    try:
        team = {"self": LMDrafter(made, VOCAB)}
    except UserError:
        return EQUAL, ""
    return run(made, truth, prompts()[:3], team, [Arm("self", 4), Arm("none", 0)], 2)


def trees(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """Two at a time, with trees."""
    return run(made, truth, prompts(), {"tree": Guesser(truth, 0.2, tree=True)}, TREES, 2)


def past(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """To the end of the model's positions and, where Transformers continues, beyond."""
    prompt = (prompts()[2] * 2)[: POSITIONS - 12]
    for n in (24, 12):
        try:
            truth[tuple(prompt)] = own_text(made, prompt, n)
            break
        except Exception:
            continue
    else:
        return EQUAL, ""
    return run(made, truth, [prompt], guessers(truth), CHAINS, 1)


def packed(made: Any, truth: dict[tuple[int, ...], Text]) -> tuple[str, str]:
    """Three at a time with fused and packed layers; the last way, since it changes the model."""
    with patch.object(timing, "SMALLEST", 0):
        arrange(made, True)
    return run(made, truth, prompts(), guessers(truth), CHAINS, 3)


def guessers(truth: dict[tuple[int, ...], Text]) -> dict[str, Any]:
    return {
        "good": Guesser(truth, 0.1),
        "bad": Guesser(truth, 0.9),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }


CHAINS = (Arm("none", 0), Arm("good", 6), Arm("good", 3), Arm("bad", 4), Arm("ngram", 4), Arm("suffix", 4))
TREES = (Arm("none", 0), Arm("tree", 4, width=2), Arm("tree", 2, width=2))
WAYS: dict[str, Way] = {
    "alone": alone,
    "chains": chains,
    "uneven": uneven,
    "even": even,
    "models": models,
    "trees": trees,
    "past": past,
    "packed": packed,
}
