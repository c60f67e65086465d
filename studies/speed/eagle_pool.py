"""A pool of EAGLE heads, one per domain: trains them, then compares them with the generalist head by counts.

    python -m studies.speed.eagle_pool --data DATA --out OUT

The training of each head continues from the bundled one (`--start`) on the target's answers to prompts of its
domain, like `draftwise train eagle`. Then every method decodes test prompts of each domain, greedily, with
drafts of five tokens and learners reset for each text. It counts target passes and accepted tokens, which do
not depend on the machine's load. After an interruption the same command continues; `--stage` runs one half.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

from draftwise import Decoder
from draftwise.core.sampling import Sampling
from draftwise.data import load_prompts
from draftwise.errors import UserError
from draftwise.models.load import load_model, load_tokenizer
from draftwise.train import eagle
from draftwise.train.settings import EagleRun
from studies.common.command import command, start
from studies.common.paired import cell, ratio, verdict

PAGE = "docs/explanation/findings.md"

DOMAINS = {"code": ("code_python", "mbpp"), "sql": ("sql",), "translation": ("translation",)}
SIZES = {"code": (40, 8, 60), "sql": (150, 24, 40), "translation": (150, 24, 40)}
"""Prompts of each file, answers in one update, and updates: short answers are cheap."""
LICENCE = "MIT, BSD, Apache-2.0, CC-BY-4.0 and CC-BY-2.0 FR, by source: see NOTICE"
POLICIES = ("metasd-ucb", "metasd-exp3", "exp3spec", "hedgespec")
CLAIMS = (
    ("MetaEagle beats the generalist head", "metasd-ucb", "generalist"),
    ("MetaEagle beats EXP3", "metasd-ucb", "metasd-exp3"),
    ("MetaEagle beats EXP3Spec", "metasd-ucb", "exp3spec"),
    ("HedgeSpec beats the generalist head", "hedgespec", "generalist"),
    ("HedgeSpec beats EXP3Spec", "hedgespec", "exp3spec"),
    ("HedgeSpec beats MetaEagle", "hedgespec", "metasd-ucb"),
    ("a domain's own head beats the generalist", "own head", "generalist"),
    ("MetaEagle beats a domain's own head", "metasd-ucb", "own head"),
)
BATCH = 8  # texts decoded together: what is accepted does not depend on it


@dataclass(frozen=True)
class Row:
    """The counts of a method on one prompt; `text` is a digest of its text."""

    method: str
    domain: str
    prompt: int
    rounds: int
    accepted: int
    text: str


def recipe(name: str, args: Namespace) -> EagleRun:
    """The training of the head of a domain."""
    prompts, batch, steps = SIZES[name]
    return EagleRun(
        data=tuple(str(args.data / file / "train.jsonl") for file in DOMAINS[name]),
        start=args.start,
        limit=max(2, round(prompts * args.scale)),
        held_out=max(1, round(12 * args.scale)),
        temperatures=(0.0, 0.7),
        seed=1,  # other prompts than those of the bundled head
        max_new_tokens=args.answer_tokens,
        target=args.target,
        steps=max(1, round(steps * args.steps)),
        batch=batch,
        rate=args.rate,
        share=1.0,
        context=64,
        checkpoint_every=10,
        measure_every=30,
        precision=args.precision,
        together=args.together,
        licence=LICENCE,
    )


def make(args: Namespace) -> None:
    """All heads, one after the other."""
    for name in DOMAINS:
        found = eagle.train(recipe(name, args), args.out / name, tell)
        before, after = (found[key]["mean_accepted"] for key in ("before", "after"))
        print(f"{name}, held out: {before:.3f} accepted a round before, {after:.3f} after", flush=True)


def methods(args: Namespace) -> dict[str, tuple[list[str], str]]:
    """Drafters and policy of every method by its name."""
    heads = {name: f"eagle:{args.out / name}" for name in DOMAINS}
    made = {"generalist": ([f"eagle:{args.start}"], "static-5")}
    made |= {f"head for {name}": ([head], "static-5") for name, head in heads.items()}
    return made | {policy: (list(heads.values()), policy) for policy in POLICIES}


def measure(args: Namespace) -> list[Row]:
    """Every method on the test prompts of every domain; what is in the file is not decoded again."""
    file = args.out / "rows.jsonl"
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    tokenizer, target = load_tokenizer(args.target), load_model(args.target)
    known = {(row.method, row.domain) for row in rows}
    for domain, files in DOMAINS.items():
        texts = [p.text for name in files[:1] for p in load_prompts(args.data / name / "test.jsonl")]
        Random(0).shuffle(texts)
        for method, (drafters, policy) in methods(args).items():
            if (method, domain) in known:
                continue
            decoder = Decoder.from_pretrained(
                target, tokenizer=tokenizer, drafters=drafters, policy=policy, seed=0
            )
            sampling = Sampling(max_new_tokens=args.max_new_tokens, eos=decoder.eos)
            found = list(decoded(decoder, texts[: args.prompts], sampling, method, domain))
            with file.open("a") as out:
                out.writelines(json.dumps(asdict(row)) + "\n" for row in found)
            rows += found
            print(f"  {domain}: {method}", file=sys.stderr, flush=True)
    return rows


def decoded(
    decoder: Decoder, texts: Sequence[str], sampling: Sampling, method: str, domain: str
) -> Iterator[Row]:
    """Decode the texts, some at a time, and count."""
    for at in range(0, len(texts), BATCH):
        some = range(at, min(at + BATCH, len(texts)))
        open_ = {decoder.loop.add(decoder.encode(texts[i]), sampling).id: i for i in some}
        counts = {i: [0, 0] for i in some}
        tokens: dict[int, list[int]] = {i: [] for i in some}
        while open_:
            for round in decoder.loop.step():
                i = open_[round.request]
                counts[i] = [counts[i][0] + 1, counts[i][1] + round.accepted]
                tokens[i] += round.tokens
                if round.done:
                    del open_[round.request]
        for i in some:
            digest = sha256(repr(tokens[i]).encode()).hexdigest()[:12]
            yield Row(method, domain, i, rounds=counts[i][0], accepted=counts[i][1], text=digest)


Passes = dict[str, dict[str, dict[int, Row]]]


def by_method(rows: Sequence[Row]) -> Passes:
    """Rows by method, domain and prompt; `own head` is each domain's own.

    Raises:
        UserError: two methods wrote different texts.
    """
    found: Passes = defaultdict(lambda: defaultdict(dict))
    said: dict[tuple[str, int], str] = {}
    for row in rows:
        if said.setdefault((row.domain, row.prompt), row.text) != row.text:
            raise UserError(f"{row.method} wrote another text for prompt {row.prompt} of {row.domain}")
        found[row.method][row.domain][row.prompt] = row
        if row.method == f"head for {row.domain}":
            found["own head"][row.domain][row.prompt] = row
    return found


def counts(found: Mapping[str, Mapping[int, Row]], domains: Sequence[str], what: str) -> np.ndarray:
    """`rounds` or `accepted` of a method on every prompt of some domains."""
    return np.array([getattr(row, what) for d in domains for _, row in sorted(found[d].items())], float)


def tables(found: Passes) -> Iterator[str]:
    """Accepted tokens a round, and the claims in target passes, by domain and over all."""
    domains = list(DOMAINS)
    n = [len(found["generalist"][domain]) for domain in domains]
    heads = " | ".join(f"{d}, n = {k}" for d, k in zip([*domains, "all"], [*n, sum(n)], strict=True))
    yield from (f"| accepted a round | {heads} |", "|---|" + "---|" * (len(domains) + 1))
    places = [*([d] for d in domains), domains]
    for name, one in found.items():
        means = [counts(one, d, "accepted").sum() / counts(one, d, "rounds").sum() for d in places]
        yield f"| {name} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |"
    yield from ("", f"| passes of the second over those of the first | {heads} |")
    yield "|---|" + "---|" * (len(domains) + 1)
    for says, first, second in CLAIMS:
        cells = []
        for d in places:
            value = ratio(counts(found[first], d, "rounds"), counts(found[second], d, "rounds"))
            cells.append(f"{verdict(*value[1:])}: {cell(*value)}")
        yield f"| {says} | " + " | ".join(cells) + " |"


def tell(what: str, done: int, total: int, left: float | None = None) -> None:
    """A progress line now and then."""
    if done % 20 == 0 or done == total:
        print(f"  {what} {done}/{total}", file=sys.stderr, flush=True)


def main() -> None:
    """Make the heads, measure, print the tables."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the texts")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--start", default="zoo:eagle", help="the head that all start from: the generalist")
    parser.add_argument("--stage", choices=("all", "make", "measure"), default="all")
    parser.add_argument("--steps", type=float, default=1.0, help="share of the updates")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the prompts to train on")
    parser.add_argument("--answer-tokens", type=int, default=128, help="of the answers to train on")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--together", type=int, default=16, help="prompts answered at once: 256 on a GPU")
    parser.add_argument("--prompts", type=int, default=12, help="test prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="of the answers to test prompts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage != "measure":
        make(args)
    if args.stage != "make":
        print(*tables(by_method(measure(args))), sep="\n")


if __name__ == "__main__":
    start(main)
