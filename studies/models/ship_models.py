"""Put models that `make_models` or `make_smollm2` made into `draftwise-zoo`: weights, tokenizer and card.

    python -m studies.models.ship_models OUT

Files that only training needs are left out. Names in the cards become `zoo:NAME`. All models together must
stay under 131 MB.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from draftwise.errors import UserError
from draftwise.models import zoo
from draftwise.train.results import WHAT
from studies.common.command import command, start

PAGE = "docs/reference/zoo.md"

ZOO = Path(__file__).parents[2] / "zoo/src/draftwise_zoo"
DESCRIPTIONS = {
    "target": "the default target",
    "general": "drafter for every domain",
    "code": "drafter for Python code",
    "math": "drafter for word problems",
    "translation": "drafter for translation into English",
    "summarization": "drafter for summaries",
    "qa": "drafter for questions about a passage",
    "sql": "drafter for SQL",
    "eagle": "EAGLE head on the target's hidden states: eagle:zoo:eagle",
    "medusa": "four Medusa heads on the target's last hidden state: medusa:zoo:medusa",
    "disco": "DISCO's classifier, which stops drafts of zoo:general: --policy disco",
    "specdecpp": "SpecDec++'s head, which stops drafts of zoo:general: --policy specdecpp",
    "router": "chooses a specialist from the prompt: --policy router:zoo:router",
    "smollm2-eagle3": "EAGLE-3 head of zoo:smollm2: eagle:zoo:smollm2-eagle3",
    "smollm2-code": "the same for code: eagle:zoo:smollm2-code",
    "smollm2-math": "the same for word problems: eagle:zoo:smollm2-math",
    "smollm2-translation": "the same for translation into English: eagle:zoo:smollm2-translation",
    "smollm2-text": "the same for summaries, questions and dialogue: eagle:zoo:smollm2-text",
    "smollm2-medusa": "four Medusa heads of zoo:smollm2: medusa:zoo:smollm2-medusa",
}
LEFT = ("training", "results.json", "curves.png", "README.md")
MOST = 131_000_000  # bytes
TOY = """**A toy model.** The text of the bundled models has the form of each domain and makes little sense.
It often repeats itself, which favours lookup drafters. Never rely on its answers."""
REAL = """Made for SmolLM2-135M-Instruct (Hugging Face, Apache 2.0), which answered all prompts itself."""
OF_TARGET = "Sources of its training text and of that of `zoo:target`:"
OF_PROMPTS = "Sources of the prompts; those of dialogue are Draftwise's own templates:"
RIGHTS = """{sources}

| domain | source | licence |
|---|---|---|
| code | MBXP (amazon-science/mxeval); Python libraries (see the notice) | CC-BY-4.0; MIT, BSD, Apache-2.0 |
| math | GSM8K (openai/grade-school-math) | MIT |
| translation | Tatoeba pairs, tatoeba.org and manythings.org/anki, through two repositories | CC-BY-2.0 FR |
| summarization | SciTLDR (allenai/scitldr) | Apache-2.0 |
| question answering | SQuAD 2.0 (chrischute/squad) | CC-BY-SA-4.0 |
| SQL | WikiSQL and Advising (jkkummerfeld/text2sql-data) | BSD-3-Clause, CC-BY-4.0 |

Attributions and exact versions: [NOTICE](../NOTICE). Licence texts: [licenses](../licenses)."""


def own_text(name: str) -> tuple[str, str, str]:
    """What a model is, as its card says it, and what the card says of the target, and of the sources."""
    if name.startswith("smollm2-"):
        return "medusa" if name.endswith("medusa") else "eagle", REAL, RIGHTS.format(sources=OF_PROMPTS)
    return name if name in WHAT else "drafter", TOY, RIGHTS.format(sources=OF_TARGET)


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("out", type=Path, help="what make_models.py has made")
    args = parser.parse_args()
    names = [name for name in DESCRIPTIONS if (args.out / name / "results.json").exists()]
    if not names:
        raise UserError(
            f"{args.out} holds no finished model: make some with studies.models.make_models or make_smollm2"
        )
    for name in names:
        ship(args.out / name, ZOO / name)
    size = sum(file.stat().st_size for file in ZOO.rglob("*") if file.is_file())
    print(f"{', '.join(names)}: {size / 1e6:.1f} MB with the others")
    if size > MOST:
        raise UserError(f"the models take {size / 1e6:.1f} MB, and {MOST / 1e6:.0f} is the most")


def ship(source: Path, place: Path) -> None:
    """One model: its files are written elsewhere first, then moved at once."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part, ignore=shutil.ignore_patterns(*LEFT))
    (part / "README.md").write_text((source / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)
    card = place / "README.md"
    text = card.read_text(encoding="utf-8")
    text = text.replace("\n---\n", f"\ndescription: {json.dumps(DESCRIPTIONS[place.name])}\n---\n", 1)
    card.write_text(text, encoding="utf-8")  # `described` reads the model, which asks for its description
    card.write_text(described(text, source, place), encoding="utf-8")


def described(card: str, source: Path, place: Path) -> str:
    """The card of a bundled model."""
    name = place.name
    known = zoo.read_model(place)
    shape = f": {known.layers} layer{'s' * (known.layers > 1)}, width {known.width}" if known.layers else ""
    about = f"{known.description[0].upper()}{known.description[1:]}. {known.parameters:,} parameters{shape}."
    for folder in (str(source), str(source.parent / "general"), str(source.parent / "smollm2-eagle3")):
        card = card.replace(folder, f"zoo:{Path(folder).name}")
    kind, note, rights = own_text(name)
    for old, new in (
        (f"--drafters {name}\n", f"--drafters zoo:{name}\n"),
        (f" {kind}:{name}\n", f" {kind}:zoo:{name}\n"),
        (f"model={name}/model.safetensors", f"model=zoo:{name}"),
        (f"# {name}\n", f"# zoo:{name}\n\n{about}\n\n{note}\n"),
    ):
        card = card.replace(old, new, 1)
    return card.replace("\n## Training\n", f"\n{rights}\n\n## Training\n", 1)


if __name__ == "__main__":
    start(main)
