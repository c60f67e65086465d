"""Make the bundled drafters of SmolLM2-135M-Instruct, with the commands of `draftwise train`.

    python -m studies.models.make_smollm2 --data DATA --out OUT
    python -m studies.models.make_smollm2 --data DATA --out OUT --only smollm2-first,smollm2-eagle3

`--data` holds `gsm8k/train.jsonl` and so on, from which prompts are made as people write them to a model:
each has its `domain` (code, math, translation, text) and its `source`. `text` is summaries, questions with
and without their context, and dialogue: requests from the templates and topics below. The target answers
each once, greedily. Then a first EAGLE-3 head for all of them, which learns on from as many other prompts;
its four specialists, for which the target answers their own prompts at temperature 0.7, too; and Medusa
heads. After an interruption the same command continues.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from draftwise.writing import write_text
from studies.common.command import command, listed, start
from studies.models.make_models import LICENCE, make

PAGE = "docs/how-to/train.md"
TARGET = "zoo:smollm2"
SPECIALISTS = ("code", "math", "translation", "text")
COMMON = {
    "target": TARGET,
    "licence": LICENCE,
    "temperatures": (0.0,),
    "max_new_tokens": 128,
    "together": 128,
    "held_out": 64,
    "remember": 10.0,
}
HEAD = {"kind": "eagle3", "context": 96, "depth": 3, "batch": 8}

Row = dict[str, str]
OWN = "Draftwise (templates)"
REQUESTED = 700  # requests that are trained on, of the 960 that there are

REQUESTS = (
    "Explain {} to a ten-year-old child.",
    "Write a short blog post about {}.",
    "What are the advantages and disadvantages of {}? Give a list.",
    "Write a polite email to a colleague who asked about {}.",
    "Tell me a short story in which {} matters.",
    "Give me five practical tips on {}.",
    "How has {} changed over the last hundred years?",
    "Compare {} with something similar that people often confuse with it.",
    "Pretend that you are a teacher. Introduce your class to {}.",
    "Write a dialogue between two friends who disagree about {}.",
    "What should a beginner know about {}?",
    "Describe the causes and the consequences of {}.",
    "I have to give a talk on {}. Draft an outline with three sections.",
    "What are common mistakes with {}, and how are they avoided?",
    "Why is {} important? Answer in one paragraph.",
    "Write a product description for a book about {}.",
)
TOPICS = (
    *("photosynthesis", "compound interest", "the water cycle", "public libraries", "electric cars"),
    *("learning a language", "the printing press", "sleep", "bread baking", "black holes"),
    *("remote work", "vaccines", "the Roman Empire", "gardening in a small flat", "inflation"),
    *("recycling", "chess", "machine learning", "mountain hiking", "the stock market"),
    *("classical music", "plate tectonics", "a job interview", "supply and demand", "volcanoes"),
    *("database indexes", "city traffic", "the French Revolution", "healthy breakfasts", "bees"),
    *("renewable energy", "time management", "quantum mechanics", "travelling by train", "jazz"),
    *("antibiotics", "school uniforms", "the Internet", "human rights", "ocean currents"),
    *("personal budgets", "operating systems", "running a marathon", "migration of birds", "taxes"),
    *("evolution", "social media", "a good night's rest", "architecture", "space travel"),
    *("coffee", "democracy", "the speed of light", "photography", "unemployment"),
    *("friendship", "version control", "the Silk Road", "probability", "the human heart"),
)


PARTS = (  # training texts, domain, how many, and the form of the prompt
    ("code_python", "code", 500, "code"),
    ("mbpp", "code", 300, "task"),
    ("sql", "code", 150, "sql"),
    ("gsm8k", "math", 900, "math"),
    ("translation", "translation", 900, "translation"),
    ("summarization", "text", 350, "summary"),
    ("qa", "text", 250, "question"),
    ("qa", "text", 300, "in context"),
    ("qa", "text", 300, "about context"),
)
CODE = ("Complete this Python function:", "Write the body of this Python function.", "Implement:")
CONTEXT = ("Summarize:", "Rewrite this for a child:", "List the facts in this text:", "Shorten this text:")


def recipes(out: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every drafter's verb and options, in the order in which they are made."""
    common = COMMON | {"data": (str(out / "prompts.jsonl"),), "answers": str(out / "answers.jsonl")}
    general = {"drafted": 8192, "steps": 2000, "rate": 2e-3, "shallow": 0.65}
    further = {
        "data": (str(out / "further.jsonl"),),
        "steps": 700,
        "rate": 1e-3,
        "shallow": 0.0,
        "start": str(out / "smollm2-first"),
    }
    table: dict[str, tuple[str, dict[str, Any]]] = {
        "smollm2-first": ("eagle", common | HEAD | general),
        "smollm2-eagle3": ("eagle", common | HEAD | further),
    }
    own = {
        "drafted": 2048,
        "steps": 150,
        "rate": 5e-4,
        "shallow": 0.0,
        "held_out": 40,
        "temperatures": (0.0, 0.7),
        "start": str(out / "smollm2-eagle3"),
    }
    for domain in SPECIALISTS:
        table[f"smollm2-{domain}"] = ("eagle", common | HEAD | own | {"domain": domain})
    medusa = {"tied": True, "heads": 4, "steps": 400, "batch": 16, "pieces": 2, "rate": 2e-3}
    table["smollm2-medusa"] = ("medusa", common | medusa)
    return table


def make_prompts(data: Path, scale: float = 1.0) -> list[Row]:
    """Draw prompts from `DATA/NAME/train.jsonl`, always in one order."""
    rng = Random("chat prompts 0")
    rows: list[Row] = []
    for name, domain, count, form in PARTS:
        texts = [json.loads(line) for line in (data / name / "train.jsonl").open(encoding="utf-8")]
        rng.shuffle(texts)
        pairs = ((as_prompt(form, one["prompt"], rng), str(one.get("source", name))) for one in texts)
        usable = [(text, source) for text, source in pairs if text]
        rows += [
            {"prompt": text, "domain": domain, "source": source}
            for text, source in usable[: round(count * scale)]
        ]
    requests = [one.format(topic) for one in REQUESTS for topic in TOPICS]
    rng.shuffle(requests)
    own = requests[: round(REQUESTED * min(scale, 1.0))]  # the others are for tests
    rows += [{"prompt": one, "domain": "text", "source": OWN} for one in own]
    rng.shuffle(rows)
    return rows


def as_prompt(form: str, text: str, rng: Random) -> str:
    """A training text in this form; empty where it does not suit."""
    match form:
        case "code":
            return (
                f"{rng.choice(CODE)}\n\n```python\n{text.rstrip()}\n```" if len(text.rstrip()) < 700 else ""
            )
        case "task":  # the sentence of an MBPP docstring, as a request
            lines = [line.strip() for line in text.split("\n")]
            return next((f"{line} Use Python." for line in lines if line.startswith("Write a")), "")
        case "sql":
            text = text.removesuffix("\nSQL:").strip()
            return f"{text}\nWrite the SQL query." if len(text) < 500 else ""
        case "math":
            return text.removeprefix("Question: ").removesuffix("\nAnswer:").strip()
        case "translation":
            return text.strip() if len(text.strip()) > 60 else ""  # mostly sentences of four words
        case "summary":
            return text.strip().removesuffix("TL;DR:").strip()[:1200]
    context, _, question = text.partition("\nQuestion:")
    context, question = (
        context.removeprefix("Context:").strip()[:900],
        question.removesuffix("Answer:").strip(),
    )
    if form == "about context":
        return f"{rng.choice(CONTEXT)} {context}"
    return question if form == "question" else f"{context}\n{question}"


def write_prompts(rows: list[Row], file: Path) -> None:
    """Write prompts to a file of JSON Lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the training text")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--only", type=listed, default=[], help="comma-separated names; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the prompts")
    parser.add_argument("--steps", type=float, default=1.0, help="share of the steps")
    parser.add_argument("--precision", default="auto", help="as of `draftwise train`")
    args = parser.parse_args()
    file, further = args.out / "prompts.jsonl", args.out / "further.jsonl"
    if not (file.exists() and further.exists()):
        first = make_prompts(args.data, scale=args.scale)
        write_prompts(first, file)
        twice, seen = make_prompts(args.data, scale=2 * args.scale), {row["prompt"] for row in first}
        write_prompts([row for row in twice if row["prompt"] not in seen], further)
    found = recipes(args.out)
    for _, options in found.values():
        options |= {"steps": max(2, round(options["steps"] * args.steps)), "precision": args.precision}
    make(found, args.only, args.out)


if __name__ == "__main__":
    start(main)
