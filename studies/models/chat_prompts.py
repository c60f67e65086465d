"""Prompts as people write them to a chat model, made from the shared data's training texts.

Each row has a prompt, its `domain` (code, math, translation, text) and its `source`. `text` is summaries,
questions with and without their context, and dialogue: requests for explanations, letters, lists, stories,
from the templates and topics below.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from draftwise.writing import write_text

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


def make_prompts(data: Path, scale: float = 1.0) -> list[Row]:
    """Draw prompts from `DATA/NAME/train.jsonl`, always in one order."""
    rng = Random("chat prompts 0")
    rows: list[Row] = []
    for name, domain, count, write in _PARTS:
        texts = [json.loads(line) for line in (data / name / "train.jsonl").open(encoding="utf-8")]
        rng.shuffle(texts)
        pairs = ((write(one, rng), str(one.get("source", name))) for one in texts)
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


def _code(row: Any, rng: Random) -> str:
    text = row["prompt"].rstrip()
    ask = ("Complete this Python function:", "Write the body of this Python function.", "Implement:")
    return f"{rng.choice(ask)}\n\n```python\n{text}\n```" if len(text) < 700 else ""


def _task(row: Any, rng: Random) -> str:
    """The sentence of an MBPP docstring, as a request."""
    lines = [line.strip() for line in row["prompt"].split("\n")]
    sentence = next((line for line in lines if line.startswith("Write a")), "")
    return f"{sentence} Use Python." if sentence else ""


def _math(row: Any, rng: Random) -> str:
    question: str = row["prompt"].removeprefix("Question: ").removesuffix("\nAnswer:").strip()
    return question


def _sql(row: Any, rng: Random) -> str:
    text = row["prompt"].removesuffix("\nSQL:").strip()
    return f"{text}\nWrite the SQL query." if len(text) < 500 else ""


def _translation(row: Any, rng: Random) -> str:
    text: str = row["prompt"].strip()
    return text if len(text) > 60 else ""  # the corpus is mostly sentences of four words


def _summary(row: Any, rng: Random) -> str:
    text: str = row["prompt"].strip().removesuffix("TL;DR:").strip()
    return text[:1200]


def _parts(row: Any) -> tuple[str, str]:
    context, _, question = row["prompt"].partition("\nQuestion:")
    context = context.removeprefix("Context:").strip()
    return context[:900], question.removesuffix("Answer:").strip()


def _question(row: Any, rng: Random) -> str:
    return _parts(row)[1]


def _in_context(row: Any, rng: Random) -> str:
    context, question = _parts(row)
    return f"{context}\n{question}"


def _about_context(row: Any, rng: Random) -> str:
    context, _ = _parts(row)
    ask = ("Summarize:", "Rewrite this for a child:", "List the facts in this text:", "Shorten this text:")
    return f"{rng.choice(ask)} {context}"


Part = tuple[str, str, int, Callable[[Any, Random], str]]
_PARTS: tuple[Part, ...] = (
    ("code_python", "code", 500, _code),
    ("mbpp", "code", 300, _task),
    ("sql", "code", 150, _sql),
    ("gsm8k", "math", 900, _math),
    ("translation", "translation", 900, _translation),
    ("summarization", "text", 350, _summary),
    ("qa", "text", 250, _question),
    ("qa", "text", 300, _in_context),
    ("qa", "text", 300, _about_context),
)


def write_prompts(rows: list[Row], file: Path) -> None:
    """Write prompts to a file of JSON Lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
