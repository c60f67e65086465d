"""Pre-train a target for the bundled models: a small Llama on prompts and completions, from random weights.

    python -m studies.models.make_target --data DATA --out OUT --tokenizer zoo:target --steps 20000

`--data` is a folder of DOMAIN/train.jsonl with `prompt` and `completion`. The training steps are those of
`draftwise train`: they use a GPU if there is one, and a killed run continues exactly. The drafters are then
made with `python -m studies.models.make_models --target OUT`.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise.errors import UserError
from draftwise.generation.prompts import prompt_ids
from draftwise.models.load import load_tokenizer
from draftwise.models.stages import quiet
from draftwise.train.folder import Folder
from draftwise.train.results import curves
from draftwise.train.settings import Training
from draftwise.train.steps import take
from draftwise.train.texts import Answer
from studies.common.command import command, start

PAGE = "docs/reference/zoo.md"

HEAD = 64  # width of an attention head


class Pretraining:
    """Cross-entropy of the next token in windows of one long text (see `draftwise.train.steps.Task`)."""

    progress = 0.0

    def __init__(self, model: Any, text: Tensor, held_out: Tensor) -> None:
        self.model, self.text, self.held_out = model, text, held_out
        self.answers = [Answer((), tuple(window)) for window in text.tolist()]

    def loss(self, examples: Sequence[int], rng: torch.Generator) -> Tensor:
        """Over all tokens of some windows."""
        return self._lost(self.text[list(examples)])

    def measure(self) -> dict[str, float]:
        """Nats per token on held-out text."""
        parts = [self._lost(part) for part in torch.split(self.held_out, 16)]
        return {"loss held out": float(torch.stack(parts).mean())}

    def _lost(self, windows: Tensor) -> Tensor:
        ids = windows.to(self.model.device)
        logits = self.model(ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def main() -> None:
    """Read the text, take the steps, write the model."""
    args = arguments()
    folder = Folder(args.out)
    data = tuple(sorted(str(file) for file in args.data.glob("*/train.jsonl")))
    given = {name: getattr(args, name) for name in ("steps", "batch", "rate", "seed", "precision", "limit")}
    run = Training(data=data, target=args.tokenizer, checkpoint_every=200, measure_every=200, **given)
    if folder.claim(f"target {args.layers} x {args.width}, windows of {args.length}", run):
        print("done already")
        return
    tokenizer = load_tokenizer(args.tokenizer)
    windows = packed(run, tokenizer, args.length)
    held = max(1, min(256, len(windows) // 50))
    model = fresh(args, tokenizer)
    print(f"{windows[held:].numel():,} tokens, {sum(p.numel() for p in model.parameters()):,} parameters")
    log = take(Pretraining(model, windows[held:], windows[:held]), run, folder.checkpoints, tell)

    def write(part: Path) -> None:
        with quiet():
            model.eval().to(torch.bfloat16).save_pretrained(part)
            tokenizer.save_pretrained(part)
        curves(log, part / "curves.png", args.out.name)

    folder.deliver(write, {"train": "target", "log": log})


def arguments() -> Namespace:
    """The shape of the model and of its training."""
    parser = command(__doc__, PAGE)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", default="zoo:target", help="the model whose tokenizer is used")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384, help=f"a multiple of {HEAD}")
    parser.add_argument("--length", type=int, default=512, help="tokens in a window")
    parser.add_argument("--limit", type=int, default=0, help="rows of each file; 0 = all")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto")
    args = parser.parse_args()
    if args.width % HEAD:
        raise UserError(f"width={args.width}: give a multiple of {HEAD}")
    return args


def packed(run: Training, tokenizer: Any, length: int) -> Tensor:
    """All rows in the chat template, one after the other in random order, cut; shape (windows, length)."""
    rows: list[dict[str, Any]] = []
    rng = Random(run.seed)
    for name in run.data:
        mine = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
        rng.shuffle(mine)
        rows += mine[: run.limit or len(mine)]
    rng.shuffle(rows)
    ids: list[int] = []
    for row in rows:
        ids += prompt_ids(tokenizer, row["prompt"])
        ids += tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
        ids.append(int(tokenizer.eos_token_id))
    if len(ids) < 2 * length:
        raise UserError(f"{len(ids)} tokens in {len(rows)} rows: give more text, or a smaller --length")
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


def fresh(args: Namespace, tokenizer: Any) -> Any:
    """A Llama with random weights, of the given shape."""
    heads = args.width // HEAD
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.width,
        intermediate_size=-(-args.width * 8 // 3 // 64) * 64,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    auto: Any = AutoModelForCausalLM
    torch.manual_seed(args.seed)
    return auto.from_config(config, dtype=torch.float32).to("cuda" if torch.cuda.is_available() else "cpu")


def tell(what: str, done: int, total: int, left: float | None = None) -> None:
    """A progress line now and then."""
    if done % 100 == 0 or done == total:
        print(f"  {what} {done}/{total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    start(main)
