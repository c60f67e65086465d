"""Write prompts of some lengths for `draftwise bench --workload`: passages to summarise, and code to repeat.

    python -m studies.speed.long_prompts --data DATA --out long.jsonl

`--data` holds `qa/test.jsonl` and `code_python/test.jsonl`. A prompt has about so many tokens as its category
says.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from draftwise.models.load import load_tokenizer
from draftwise.writing import write_text
from studies.common.command import command, numbers, start

PAGE = "docs/explanation/smollm2.md"
ASKED = {
    "passages": ("qa", "{}\n\nSummarize the passages above in the order in which they stand."),
    "code": ("code_python", "```python\n{}\n```\nWrite this again, with a comment on each line."),
}


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the test texts")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--target", default="zoo:smollm2", help="whose tokens are counted")
    parser.add_argument("--tokens", type=numbers, default=[1000, 2000, 4000], help="of each prompt")
    parser.add_argument("--each", type=int, default=2, help="prompts of each kind and length")
    args = parser.parse_args()
    tokenizer, rng, rows = load_tokenizer(args.target), Random("long prompts 0"), list[dict[str, str]]()
    for kind, (folder, form) in ASKED.items():
        texts = read_texts(args.data / folder / "test.jsonl")
        for tokens in args.tokens:
            for _ in range(args.each):
                body = first_tokens(tokenizer, "\n\n".join(rng.sample(texts, len(texts))), tokens)
                rows.append({"prompt": form.format(body), "category": f"{kind} {tokens}"})
    write_text(args.out, "".join(json.dumps(row) + "\n" for row in rows))


def read_texts(file: Path) -> list[str]:
    """The prompts of a file without what they ask, each once."""
    prompts = (json.loads(line)["prompt"] for line in file.open(encoding="utf-8"))
    return [*dict.fromkeys(text.partition("\nQuestion:")[0].strip() for text in prompts)]


def first_tokens(tokenizer: Any, text: str, count: int) -> str:
    """The first so many tokens of a text."""
    ids = tokenizer(text[: 16 * count], add_special_tokens=False)["input_ids"][:count]
    return str(tokenizer.decode(ids))


if __name__ == "__main__":
    start(main)
