"""What is decoded: the bundled questions, known data sets from a folder, any JSONL file, and mixtures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from ..data import Prompt, load_prompts, read_rows, spec_bench
from ..errors import UserError
from ..inputs import whole
from ..registry import meant

SPLITS = ("all", "test", "validation")
STRETCH = 10  # prompts of one category in a row: what the smallest categories have
HOSTILE_LENGTH = 400  # letters; random ones are many tokens

# Written for this workload: the bundled questions have no French.
FRENCH = (
    "Le train de nuit part à dix heures et arrive avant l'aube.",
    "Ma sœur a acheté une vieille maison près de la rivière.",
    "Nous avons oublié les clés sur la table de la cuisine.",
    "Il pleut depuis trois jours et les enfants s'ennuient.",
    "Le médecin m'a dit de boire plus d'eau.",
    "Les voisins ont planté un pommier dans leur jardin.",
    "Elle parle quatre langues, mais elle n'aime pas voyager.",
    "Pouvez-vous m'indiquer le chemin de la gare ?",
    "Le boulanger ouvre sa boutique à six heures du matin.",
    "Je n'ai jamais vu autant d'étoiles dans le ciel.",
    "Mon grand-père réparait des montres dans une petite rue.",
    "La réunion a été reportée à la semaine prochaine.",
    "Ce livre raconte la vie d'un pêcheur et de son fils.",
    "Nous prendrons le bateau si le vent se calme.",
    "Les étudiants attendent les résultats de l'examen.",
    "Il faut fermer les fenêtres avant l'orage.",
)


def load(name: str, *, seed: int = 0) -> list[Prompt]:
    """The prompts of a workload, in its order; `seed` decides where the order or the text is drawn.

    `spec-bench`; `mixed`, `phased`, `drift` or `hostile`, made of its questions; `humaneval:PATH`,
    `mbpp:PATH` or `gsm8k:PATH`, a folder or a file; or the path of a JSONL file of prompts.

    Raises:
        UserError: no such workload or file, or a broken line, named with its file.
    """
    name = name.strip()
    if name == "spec-bench":
        return spec_bench()
    if name in MOVING:
        return MOVING[name](spec_bench(), seed)
    kind, colon, path = name.partition(":")
    if kind in SETS:
        if not (colon and path):
            raise UserError(f"workload {name!r} needs its folder: write {kind}:PATH")
        return _data_set(kind, Path(path))
    if not Path(name).is_file():
        choices = ", ".join(["spec-bench", *MOVING, *(f"{s}:PATH" for s in SETS)])
        near = meant(name, ["spec-bench", *MOVING])
        raise UserError(f"no workload or file {name!r}: {near}choose from {choices}, or name a JSONL file")
    return load_prompts(name)


def choose(
    prompts: Sequence[Prompt], *, split: str = "all", per_category: int = 0, limit: int = 0
) -> list[Prompt]:
    """The prompts of one split, the first `per_category` of each category, `limit` in all (0 = no bound)."""
    if split not in SPLITS:
        raise UserError(f"--split {split}: choose from {', '.join(SPLITS)}")
    for name, bound in (("--limit", limit), ("--per-category", per_category)):
        if bound < 0:
            raise UserError(f"{name} {bound}: give 1 or more, or 0 for all")
    counts: Counter[str] = Counter()
    selection = []
    for prompt in prompts:
        if split != "all" and validation(prompt) != (split == "validation"):
            continue
        counts[prompt.category] += 1
        if not per_category or counts[prompt.category] <= per_category:
            selection.append(prompt)
    if not selection:
        raise UserError(f"none of the {len(prompts)} prompts is in the split {split}: use --split all")
    return selection[:limit] if limit else selection


def encode_fitting(
    prompts: Sequence[Prompt], encode: Callable[[str], list[int]], *, max_new_tokens: int, window: int
) -> tuple[list[tuple[int, list[int]]], list[str]]:
    """Return place and token ids of prompts that fit a window with their answer, and the others in words."""
    encoded, left_out = [], []
    for place, prompt in enumerate(prompts):
        ids = encode(prompt.text)
        if len(ids) + max_new_tokens > window:
            left_out.append(
                f"{prompt.category} {prompt.question_id}: {len(ids)} tokens and {max_new_tokens} new ones do "
                f"not fit the window of {window}"
            )
        else:
            encoded.append((place, ids))
    if not encoded:
        raise UserError(f"no prompt fits the target's window: {left_out[0]}")
    return encoded, left_out


def validation(prompt: Prompt) -> bool:
    """Return whether a prompt is kept for tuning: a quarter of all, by the SHA-256 of its text."""
    return sha256(prompt.text.encode()).digest()[0] % 4 == 0


# -- data sets --------------------------------------------------------------------------------------------


def _mbpp(row: Mapping[str, Any]) -> Any:
    """The signature form as it is; the original one with its tests, as its authors prompt with it."""
    if "prompt" in row or "text" not in row:
        return row.get("prompt")
    tests = "\n".join(map(str, row.get("test_list") or ()))
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} "
        f"Your code should pass these tests:\n\n{tests}\n"
    )


SETS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "humaneval": lambda row: row.get("prompt"),
    "mbpp": _mbpp,
    "gsm8k": lambda row: f"Question: {row['question']}\nAnswer:" if "question" in row else row.get("prompt"),
}
OFFICIAL = {"humaneval": ("HumanEval.jsonl", "HumanEval.jsonl.gz")}


def _data_set(kind: str, path: Path) -> list[Prompt]:
    file = path if path.is_file() else next((f for f in _candidates(kind, path) if f.is_file()), None)
    if file is None:
        looked = ", ".join(str(f.relative_to(path)) for f in _candidates(kind, path))
        raise UserError(f"no {kind} in {path}: name a JSONL file, or a folder with one of {looked}")
    prompts = []
    for number, row in read_rows(file):
        text = SETS[kind](row)
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{file}, line {number}: no prompt of {kind} (its fields: {', '.join(row)})")
        name = row.get("task_id", row.get("id", number))
        name = name if isinstance(name, (int, str)) else number
        prompts.append(Prompt(name, kind, (whole(text, f"{file}, line {number}:"),)))
    if not prompts:
        raise UserError(f"no prompt in {file}: the file is empty")
    return prompts


def _candidates(kind: str, folder: Path) -> list[Path]:
    names = (*OFFICIAL.get(kind, ()), f"{kind}.jsonl", f"{kind}/test.jsonl", "test.jsonl")
    return [folder / name for name in names]


# -- mixtures of the bundled questions --------------------------------------------------------------------


def mixed(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return one prompt of each category in turn, each category's in shuffled order."""
    shuffle = Random(f"mixed {seed}")
    turns = zip_longest(*_shuffled(prompts, shuffle).values())
    return [p for turn in turns for p in shuffle.sample(turn, len(turn)) if p is not None]


def phased(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return stretches of one category, then of another; every cycle visits the categories in a new order."""
    shuffle = Random(f"phased {seed}")
    left = _shuffled(prompts, shuffle)
    phases: list[Prompt] = []
    while left:
        for category in shuffle.sample(list(left), len(left)):
            phases += left[category][:STRETCH]
            left[category] = left[category][STRETCH:]
        left = {category: rest for category, rest in left.items() if rest}
    return phases


def drift(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return two tasks in one request, so that the text itself changes half-way.

    In turn: a German and a French sentence to translate, and questions of two categories.
    """
    shuffle = Random(f"drift {seed}")
    german = [p for p in prompts if p.category == "translation"]
    others = [p for p in shuffle.sample(list(prompts), len(prompts)) if len(p.text) < 1000]
    prompts_of_two = []
    for number, one in enumerate(shuffle.sample(german, len(german))):
        french = shuffle.choice(FRENCH)
        both = f"{one.text}\nTranslate French to English: {french}"
        prompts_of_two.append(Prompt(f"languages-{number}", "drift languages", (both,)))
        first, second = shuffle.sample(others, 2)
        while second.category == first.category:
            second = shuffle.choice(others)
        both = f"{first.text}\n\n{second.text}"
        prompts_of_two.append(Prompt(f"tasks-{number}", "drift tasks", (both,)))
    return prompts_of_two


def hostile(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return the questions with random letters: nothing to know, nothing to look up."""
    shuffle = Random(f"hostile {seed}")

    def noise(text: str) -> str:
        return "".join(shuffle.choice(ascii_lowercase) if letter.isalpha() else letter for letter in text)

    return [Prompt(f"hostile-{p.question_id}", "hostile", (noise(p.text[:HOSTILE_LENGTH]),)) for p in prompts]


def _shuffled(prompts: Sequence[Prompt], shuffle: Random) -> dict[str, list[Prompt]]:
    """Return the prompts by category, each category's in shuffled order."""
    categories: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        categories.setdefault(prompt.category, []).append(prompt)
    return {category: shuffle.sample(group, len(group)) for category, group in categories.items()}


MOVING: Mapping[str, Callable[[Sequence[Prompt], int], list[Prompt]]] = {
    "mixed": mixed,
    "phased": phased,
    "drift": drift,
    "hostile": hostile,
}
