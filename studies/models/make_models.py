"""Make every bundled model except the target from the data, with the commands of `draftwise train`.

    python -m studies.models.make_models --data DATA --out OUT
    python -m studies.models.make_models --data DATA --out OUT --only general,sql --scale 0.1

`--data` holds `code_python/train.jsonl`, `gsm8k/train.jsonl` and so on. Each model is one folder of OUT with
its card, curves and results; after an interruption the same command continues. The target answers the mixture
of all domains once, for the generalist, the heads and the classifiers; each specialist has its own answers.
`--scale` and `--steps` reduce data and training, for a small machine or a trial run. The second edition that
comes with Draftwise was made on two CPU cores, by

    python -m studies.models.make_models --data DATA --out OUT --scale 0.1 --steps 0.2 --start zoo:general \\
        --precision bfloat16 --pieces 4
"""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from draftwise.train.settings import (
    ClassifierRun,
    DrafterRun,
    EagleRun,
    MedusaRun,
    RouterRun,
    read_options,
)
from studies.common.command import command, listed, start

PAGE = "docs/reference/zoo.md"

FILES = {
    "code": ("code_python", "mbpp"),
    "math": ("gsm8k",),
    "translation": ("translation",),
    "summarization": ("summarization",),
    "qa": ("qa",),
    "sql": ("sql",),
}
LICENCE = "MIT, BSD, Apache-2.0, CC-BY-4.0, CC-BY-SA-4.0 and CC-BY-2.0 FR, by source: see NOTICE"
KINDS: dict[str, Any] = {
    "drafter": DrafterRun,
    "eagle": EagleRun,
    "medusa": MedusaRun,
    "classifier": ClassifierRun,
    "router": RouterRun,
}
MIXTURE = {"limit": 1500, "held_out": 56, "temperatures": (0.0, 0.3, 0.7, 1.0), "max_new_tokens": 128}
ROUTES = (
    *("code=zoo:code", "mbpp=zoo:code", "gsm8k=zoo:math", "translation=zoo:translation"),
    *("summarization=zoo:summarization", "qa=zoo:qa", "sql=zoo:sql"),
)


def recipes(target: str, out: Path, start: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every model's verb and options, in the order in which they are made."""
    mixture = MIXTURE | {"answers": str(out / "mixture.answers.jsonl"), "data": tuple(FILES)}
    stop = {"drafter": str(out / "general"), "batch": 32}
    first = {"start": start, "steps": 6000, "batch": 32, "rate": 1e-3 if start else 2e-3}
    models: dict[str, tuple[str, dict[str, Any]]] = {"general": ("drafter", mixture | first)}
    for name in FILES:
        own = {"data": (name,), "start": str(out / "general"), "limit": 3000, "held_out": 40}
        own |= {"max_new_tokens": MIXTURE["max_new_tokens"], "steps": 1500, "batch": 32, "rate": 5e-4}
        if name == "qa":  # answers of three tokens: more prompts, each answered once
            own |= {"limit": 12000, "held_out": 160, "temperatures": (0.0,), "steps": 1000, "rate": 2e-4}
        models[name] = ("drafter", own)
    head = {"kind": "eagle", "steps": 6000, "batch": 16, "rate": 2e-3, "share": 1.0, "context": 64}
    models["eagle"] = ("eagle", mixture | head)
    models["medusa"] = ("medusa", mixture | {"steps": 3000, "batch": 32, "rate": 2e-3, "tied": True})
    models["disco"] = ("classifier", mixture | stop | {"kind": "disco", "steps": 4000})
    models["specdecpp"] = ("classifier", mixture | stop | {"kind": "specdecpp", "steps": 2000, "rate": 2e-3})
    models["router"] = ("router", {"data": tuple(FILES), "limit": 1000, "held_out": 600, "routes": ROUTES})
    return {
        name: (verb, {"target": target, "licence": LICENCE} | more) for name, (verb, more) in models.items()
    }


def main() -> None:
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the training text")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument(
        "--start", default="", help="start of the generalist's training; default: a new model"
    )
    parser.add_argument("--only", type=listed, default="", help="comma-separated names; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the prompts")
    parser.add_argument("--steps", type=float, default=1.0, help="share of the steps")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--pieces", type=int, default=1, help="parts of an update: 4 on a CPU")
    parser.add_argument("--together", type=int, default=16, help="prompts answered at once: 256 on a GPU")
    args = parser.parse_args()
    models = recipes(args.target, args.out, args.start)
    models = {name: (verb, scaled(options, args, verb)) for name, (verb, options) in models.items()}
    make(models, args.only, args.out)


def make(found: dict[str, tuple[str, dict[str, Any]]], only: list[str], out: Path) -> None:
    """Train the named models, or all, each in its folder of OUT."""
    out.mkdir(parents=True, exist_ok=True)
    if unknown := set(only) - found.keys():
        raise UserError(f"unknown model {sorted(unknown)[0]!r}: choose from {', '.join(found)}")
    for name in only or list(found):
        verb, options = found[name]
        run = read_options(KINDS[verb], None, options)
        results = import_module(f"draftwise.train.{verb}").train(run, out / name, tell)
        print(name, {key: round(value, 3) for key, value in results["after"].items()}, flush=True)


def scaled(options: dict[str, Any], args: Namespace, verb: str) -> dict[str, Any]:
    """Options with the data where it is, smaller if asked for."""
    files = [file for name in options["data"] for file in FILES[name]]
    more: dict[str, Any] = {"data": tuple(str(args.data / file / "train.jsonl") for file in files)}
    shares = {"limit": args.scale, "steps": args.steps, "held_out": min(1.0, 5 * args.scale)}
    for name, share in shares.items():
        if name in options:
            more[name] = max(2, round(options[name] * share))
    if verb != "router":
        more |= {name: getattr(args, name) for name in ("precision", "pieces", "together")}
    return options | more


SAID: dict[str, int] = {}  # what was told last, in twentieths


def tell(what: str, done: int, total: int, left: float | None = None) -> None:
    """Progress lines: the first, the last and one in twenty."""
    part = done * 20 // max(total, 1)
    if done in (0, total) or part != SAID.get(what):
        print(f"  {what} {done}/{total}", file=sys.stderr, flush=True)
    SAID[what] = part


if __name__ == "__main__":
    start(main)
