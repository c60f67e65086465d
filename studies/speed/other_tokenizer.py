"""Accepted tokens a round of one draft model with the target's tokenizer and with another one.

    python -m studies.speed.other_tokenizer --data DATA --out OUT

Both models begin as the bundled `zoo:general` and see the same texts in as many steps. The other one has a
SentencePiece-like tokenizer (BPE, `▁` for spaces, byte fallback) of as many tokens, trained on the same
texts; the embedding of each of its tokens begins as the mean of those that `zoo:general` has for its text.
Then they draft four tokens a round for test prompts of each domain, greedily and at temperature 1: counts,
which do not depend on the machine's load. After an interruption the same command continues.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from draftwise import Decoder
from draftwise.errors import UserError
from draftwise.models.load import load_model, load_tokenizer
from studies.common.command import command, progress, start

PAGE = "docs/how-to/stronger-drafters.md"

DOMAINS = ("translation", "gsm8k", "sql", "code_python", "qa")
WAYS = {"same": "", "text": "?vocabulary=text", "shared": "?vocabulary=shared"}
LENGTH = 4
LONGEST = 256  # tokens of a text


def rows(data: Path, file: str, limit: int) -> list[dict[str, str]]:
    """The same `limit` rows of every domain, mixed."""
    mixed: list[dict[str, str]] = []
    for domain in DOMAINS:
        path = data / domain / file
        if not path.is_file():
            raise UserError(f"--data {data}: there is no {domain}/{file}")
        lines = path.read_text(encoding="utf-8").splitlines()
        mixed += [json.loads(line) for line in Random(1).sample(lines, min(limit, len(lines)))]
    Random(2).shuffle(mixed)
    return mixed


def text(row: dict[str, str]) -> str:
    """A row as the target's chat template renders it."""
    return f"<|user|>{row['prompt']}<|assistant|>{row['completion']}<|end|>"


def sentencepiece(texts: Sequence[str], like: Any) -> Any:
    """A tokenizer with byte fallback, as many tokens as another one and its special tokens."""
    special = [str(token.content) for _, token in sorted(like.added_tokens_decoder.items())]
    raw = Tokenizer(models.BPE(byte_fallback=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence(parts)
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=len(like), special_tokens=names, limit_alphabet=200, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    plain = json.loads(raw.to_str())
    plain["added_tokens"] = []  # the bytes are no special tokens
    raw = Tokenizer.from_str(json.dumps(plain))
    raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    fast: Any = PreTrainedTokenizerFast  # untyped
    return fast(tokenizer_object=raw, eos_token="<|end|>", bos_token="<|bos|>", pad_token="<|pad|>")


def moved(model: Any, old: Any, new: Any) -> Any:
    """The model with the vocabulary of another tokenizer."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.vocab_size, config.eos_token_id = len(new), new.eos_token_id
    auto: Any = AutoModelForCausalLM
    made, weights = auto.from_config(config).float(), model.state_dict()
    names = {name: i for name, i in old.get_vocab().items() if i in old.all_special_ids}
    tokens = [[names[name]] if name in names else None for name in new.convert_ids_to_tokens(range(len(new)))]
    for i, known in enumerate(tokens):
        tokens[i] = known or old(new.decode([i]), add_special_tokens=False)["input_ids"] or [old.pad_token_id]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.stack([weights[name][ids].mean(0) for ids in tokens])
    made.load_state_dict(weights)
    return made


def trained(model: Any, tokenizer: Any, texts: Sequence[str], args: Namespace, name: str) -> Any:
    """The model after `args.steps` steps on the texts, in their order."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01)
    said, end = progress(10), tokenizer.pad_token_id
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 10) * (1.0 - step / args.steps)
        batch = [texts[(step * args.batch + i) % len(texts)] for i in range(args.batch)]
        ids = [tokenizer(one, add_special_tokens=False)["input_ids"][:LONGEST] for one in batch]
        width = max(map(len, ids))
        tokens = torch.tensor([[*one, *[end] * (width - len(one))] for one in ids])
        labels = tokens.masked_fill(tokens == end, -100)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(f"{name}: loss {float(loss):.2f}", step + 1, args.steps)
    return model


def prepared(args: Namespace) -> Iterator[tuple[str, Path]]:
    """Both models with their tokenizers, trained where they are not there yet."""
    like, texts = (
        load_tokenizer("zoo:general"),
        [text(row) for row in rows(args.data, "train.jsonl", args.limit)],
    )
    for name in ("same", "other"):
        folder = args.out / name
        if not (folder / "model.safetensors").is_file():
            tokenizer = like if name == "same" else sentencepiece(texts, like)
            model: Any = load_model("zoo:general", dtype="float32")
            model = moved(model, like, tokenizer) if name == "other" else model
            model = trained(model.train(), tokenizer, texts, args, name)
            tokenizer.save_pretrained(folder)
            model.to(torch.bfloat16).save_pretrained(folder)
        yield name, folder


def measured(args: Namespace, folders: dict[str, Path]) -> list[dict[str, Any]]:
    """The counts of every way and temperature, by domain."""
    prompts = [(row["domain"], row["prompt"]) for row in rows(args.data, "test.jsonl", args.prompts)]
    drafters = {
        way: f"lm:{folders['same' if way == 'same' else 'other']}{option}" for way, option in WAYS.items()
    }
    found = []
    for way, drafter in drafters.items():
        decoder = Decoder.from_pretrained("zoo:target", drafters=[drafter], policy=f"static-{LENGTH}", seed=1)
        for temperature in (0.0, 1.0):
            sampling: dict[str, Any] = {"temperature": temperature}
            sampling |= {"seed": 7} if temperature else {}
            outputs = decoder.generate_many(
                [prompt for _, prompt in prompts], batch=8, max_new_tokens=args.max_new_tokens, **sampling
            )
            for (domain, _), output in zip(prompts, outputs, strict=True):
                count = [(r.accepted, r.drafted) for r in output.rounds]
                found.append({"way": way, "temperature": temperature, "domain": domain, "rounds": count})
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Accepted tokens a round, their standard error over prompts, and drafted tokens a round."""
    lines = ["| drafter | greedy | temperature 1 |", "|---|---|---|"]
    for way in WAYS:
        cells = []
        for temperature in (0.0, 1.0):
            mine = [one["rounds"] for one in found if (one["way"], one["temperature"]) == (way, temperature)]
            rounds = [r for one in mine for r in one]
            mean = sum(a for a, _ in rounds) / len(rounds)
            apart = [sum(a for a, _ in one) - mean * len(one) for one in mine]
            error = sum(x * x for x in apart) ** 0.5 / len(rounds)
            cells.append(f"{mean:.2f} ± {error:.2f} of {sum(d for _, d in rounds) / len(rounds):.2f}")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, measure, and print the table."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of JSONL per domain")
    parser.add_argument("--out", type=Path, required=True, help="folder for models and results.json")
    parser.add_argument("--steps", type=int, default=150, help="training steps of each model")
    parser.add_argument("--batch", type=int, default=16, help="texts in a step")
    parser.add_argument("--rate", type=float, default=1e-3, help="largest learning rate")
    parser.add_argument("--limit", type=int, default=1000, help="training texts of each domain")
    parser.add_argument("--prompts", type=int, default=8, help="test prompts of each domain")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(1)
    args.out.mkdir(parents=True, exist_ok=True)
    found = measured(args, dict(prepared(args)))
    (args.out / "results.json").write_text(json.dumps(found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    start(main)
