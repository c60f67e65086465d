"""Workloads that move, made of Spec-Bench's questions: what helped a moment ago may not help now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from random import Random
from string import ascii_lowercase

from ..data import Prompt

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


def mixed(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """One prompt of each category in turn, each category's in shuffled order."""
    shuffle = Random(f"mixed {seed}")
    turns = zip_longest(*_shuffled(prompts, shuffle).values())
    return [p for turn in turns for p in shuffle.sample(turn, len(turn)) if p is not None]


def phased(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Stretches of one category, then of another; every cycle visits the categories in a new order."""
    shuffle = Random(f"phased {seed}")
    left = _shuffled(prompts, shuffle)
    phases: list[Prompt] = []
    while left:
        for category in shuffle.sample(list(left), len(left)):
            phases += left[category][:STRETCH]
            left[category] = left[category][STRETCH:]
        left = {category: mine for category, mine in left.items() if mine}
    return phases


def drift(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Two tasks in one request, so that the text itself changes half-way.

    In turn: a German and a French sentence to translate, and questions of two categories.
    """
    shuffle = Random(f"drift {seed}")
    german = [p for p in prompts if p.category == "translation"]
    others = [p for p in shuffle.sample(list(prompts), len(prompts)) if len(p.text) < 1000]
    made = []
    for number, one in enumerate(shuffle.sample(german, len(german))):
        french = shuffle.choice(FRENCH)
        both = f"{one.text}\nTranslate French to English: {french}"
        made.append(Prompt(f"languages-{number}", "drift languages", (both,)))
        first, second = shuffle.sample(others, 2)
        while second.category == first.category:
            second = shuffle.choice(others)
        both = f"{first.text}\n\n{second.text}"
        made.append(Prompt(f"tasks-{number}", "drift tasks", (both,)))
    return made


def hostile(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """The questions with every letter drawn at random: nothing to know, nothing to look up."""
    shuffle = Random(f"hostile {seed}")
    return [
        Prompt(f"hostile-{p.question_id}", "hostile", (_noise(p.text[:HOSTILE_LENGTH], shuffle),))
        for p in prompts
    ]


def _noise(text: str, shuffle: Random) -> str:
    return "".join(shuffle.choice(ascii_lowercase) if letter.isalpha() else letter for letter in text)


def _shuffled(prompts: Sequence[Prompt], shuffle: Random) -> dict[str, list[Prompt]]:
    """The prompts by category, each category's in shuffled order."""
    categories: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        categories.setdefault(prompt.category, []).append(prompt)
    return {category: shuffle.sample(mine, len(mine)) for category, mine in categories.items()}
