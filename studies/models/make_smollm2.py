"""Make the bundled drafters of SmolLM2-135M-Instruct, with the commands of `draftwise train`.

    python -m studies.models.make_smollm2 --data DATA --out OUT
    python -m studies.models.make_smollm2 --data DATA --out OUT --only smollm2-first,smollm2-eagle3

`--data` holds `gsm8k/train.jsonl` and so on, from which `chat_prompts` makes prompts as people write them;
the target answers each once, greedily. Then a first EAGLE-3 head for all of them, which learns on from as
many other prompts; its four specialists, for which the target answers their own prompts at temperature 0.7,
too; and Medusa heads. After an interruption the same command continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from studies.common.command import command, listed, start
from studies.models.chat_prompts import make_prompts, write_prompts
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
