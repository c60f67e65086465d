"""Acceptance of every drafter on every domain: accepted tokens per round, greedy, drafts of five tokens.

    python -m studies.speed.acceptance --data DATA --drafters zoo:general,zoo:code,ngram --limit 20

`--data` is a folder with one `DOMAIN/test.jsonl` each, a JSONL file of prompts, or `spec-bench`. A star
marks a domain's best drafter. Counts only: the table does not depend on the machine's load.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from random import Random

from draftwise import Decoder
from draftwise.core.roles import window_of
from draftwise.data import load_prompts, spec_bench
from draftwise.errors import UserError
from draftwise.generation.prompts import prompt_ids
from draftwise.models.load import load_model, load_tokenizer
from draftwise.models.zoo import list_zoo
from draftwise.train.results import acceptance
from studies.common.command import command, listed, start
from studies.common.tables import heading, row

PAGE = "docs/explanation/toys.md"


def main() -> None:
    models = [one.name for one in list_zoo() if one.name != "zoo:target"]
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", default="spec-bench", help="a folder, a file or spec-bench")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default=",".join([*models, "ngram", "suffix"]))
    parser.add_argument("--limit", type=int, default=20, help="prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    args = parser.parse_args()
    tokenizer, target = load_tokenizer(args.target), load_model(args.target)
    window = window_of(Decoder.from_pretrained(target, tokenizer=tokenizer).loop.target)
    print(heading("domain", "prompts", *(name.removeprefix("zoo:") for name in args.drafters)))
    for domain, texts in domains(args.data, args.limit).items():
        ids = [prompt_ids(tokenizer, text) for text in texts]
        ids = [one for one in ids if len(one) + args.max_new_tokens < window]
        values = []
        for drafter in args.drafters:
            print(f"{domain}: {drafter}", file=sys.stderr)
            found = acceptance(target, tokenizer, drafter, ids, max_new_tokens=args.max_new_tokens)
            values.append(found["mean_accepted"])
        cells = [f"{x:.2f}{'*' if x == max(values) else ''}" for x in values]
        print(row(domain, len(ids), *cells), flush=True)


def domains(data: str, limit: int) -> dict[str, list[str]]:
    """Some prompts of each domain."""
    by_domain: dict[str, list[str]] = defaultdict(list)
    place = Path(data)
    if place.is_dir():
        for file in sorted(place.glob("*/test.jsonl")):
            by_domain[file.parent.name] = [p.text for p in load_prompts(file)]
    else:
        for prompt in spec_bench() if data == "spec-bench" else load_prompts(place):
            by_domain[prompt.category].append(prompt.text)
    if not by_domain:
        raise UserError(f"no DOMAIN/test.jsonl in {data}")
    for texts in by_domain.values():
        Random(0).shuffle(texts)
    return {name: texts[:limit] for name, texts in by_domain.items()}


if __name__ == "__main__":
    start(main)
