"""The folder of one training: the model, and in `training` everything needed to resume a killed run.

OUT/README.md, curves.png, results.json, the model's own files OUT/training/run.yaml, numerics.json,
answers.jsonl, checkpoints/
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..inputs import parse_json
from .budget import Budget
from .numerics import in_half, on_cpu
from .reading import packages, plain
from .settings import Run, Training
from .texts import Answer, Tell, answers, encoded, prompts


@dataclass(frozen=True, slots=True)
class Folder:
    """The paths of a training."""

    out: Path

    @property
    def work(self) -> Path:
        """The folder for files that only training needs."""
        return self.out / "training"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, one folder each."""
        return self.work / "checkpoints"

    @property
    def numerics(self) -> Path:
        """The file with the precision and the number of threads."""
        return self.work / "numerics.json"

    def budget(self, run: Training) -> Budget:
        """Return the time that this training may take, less what its earlier runs took."""
        return Budget(run.minutes, self.work / "seconds.json")

    def claim(self, verb: str, run: Run) -> dict[str, Any] | None:
        """Make the folder, or resume in it; returns the results of a finished training.

        A training that failed before it began, for example because of a misspelt name, leaves nothing to
        resume: other options replace its own. The target's answers stay if they fit.

        Raises:
            UserError: it holds another training, or something else.
        """
        packages()
        said = {"train": verb, **plain(run)}
        file = self.work / "run.yaml"
        if file.exists():
            there = self._read(file)
            other = sorted(k for k in said.keys() | there.keys() if said.get(k) != there.get(k))
            if other and not self._begun(file):
                self.numerics.unlink(missing_ok=True)
                self._write(file, said)
            elif other:
                raise UserError(
                    f"{self.out} holds a training with another {', '.join(other)}: give the same options to "
                    "continue with it, or another --out"
                )
        elif self.out.exists() and not (self.out.is_dir() and set(self.out.iterdir()) <= {self.work}):
            raise UserError(f"{self.out} is there and holds no training: give a new folder as --out")
        else:
            try:
                self.work.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"cannot make {self.work}: {error.strerror}; give another --out") from error
            self._write(file, said)
        results = self.out / "results.json"
        return self._read(results) if results.exists() else None

    def _read(self, file: Path) -> dict[str, Any]:
        """A file of this folder that holds names and values.

        Raises:
            UserError: it is damaged.
        """
        import yaml

        try:
            text = file.read_text(encoding="utf-8")
            found = yaml.safe_load(text) if file.suffix == ".yaml" else parse_json(text)
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{file} is damaged: give a new folder as --out")
        return found

    def _begun(self, file: Path) -> bool:
        """Whether the folder holds more than the options and the target's answers."""
        return not (
            set(self.out.iterdir()) <= {self.work}
            and set(self.work.iterdir())
            <= {file, self.numerics, self.work / "answers.jsonl", self.work / "seconds.json"}
        )

    def _write(self, file: Path, said: dict[str, Any]) -> None:
        import yaml

        replace(file, lambda part: part.write_text(yaml.safe_dump(said, sort_keys=False)))

    def once(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What was measured before training; a resumed run reads it from the folder."""
        file = self.work / f"{name}.json"
        if not file.exists():
            text = json.dumps(measure())
            replace(file, lambda part: part.write_text(text))
        return self._read(file)

    def deliver(self, write: Callable[[Path], None]) -> None:
        """Write files to a temporary folder, then move each in atomically."""
        part = self.work / "delivery.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        write(part)
        mode = (self.work / "run.yaml").stat().st_mode  # Safetensors' own mode is owner-only
        for file in sorted(part.iterdir()):
            file.chmod(mode)
            file.replace(self.out / file.name)
        part.rmdir()

    def finish(self, results: dict[str, Any]) -> None:
        """Write the results, the last file of all: it marks a training as finished."""
        text = json.dumps(results, indent=1) + "\n"
        replace(self.out / "results.json", lambda part: part.write_text(text))


@dataclass(frozen=True, slots=True)
class Material:
    """The data of a training: the target, its answers and their `file`, and held-out prompts."""

    target: Any
    tokenizer: Any
    file: Path
    answers: list[Answer]
    held_out: list[Answer]
    measuring: list[list[int]]
    sources: dict[str, int]
    domains: dict[str, int]
    budget: Budget | None = None


def gather(run: Training, folder: Folder, tell: Tell) -> Material:
    """Load the target, read the prompts, and generate its answers to all of them."""
    from ..models.load import load_model, load_tokenizer

    to_learn, held = prompts(run)
    tokenizer = load_tokenizer(run.target, trust_remote_code=run.trust_remote_code)
    trust: dict[str, Any] = {"trust_remote_code": run.trust_remote_code}
    dtype = "auto" if in_half(run) and not on_cpu(run) else "float32"  # float32 decodes faster on a CPU
    target = load_model(run.target, dtype=dtype, device=run.device, **trust)
    target.requires_grad_(False)
    learnt = encoded(run, to_learn, target, tokenizer)
    measuring = encoded(run, held, target, tokenizer)
    path = Path(run.answers).expanduser() if run.answers else folder.work / "answers.jsonl"
    budget = folder.budget(run)
    every = [*measuring, *learnt]
    known = answers(run, every, target, tokenizer, path, tell, first=len(measuring), budget=budget)
    apart = {tuple(ids) for ids in measuring}
    return Material(
        target=target,
        tokenizer=tokenizer,
        file=path,
        answers=[one for one in known if one.prompt not in apart],
        held_out=[one for one in known if one.prompt in apart],
        measuring=measuring,
        budget=budget,
        sources=dict(Counter(p.source or "not stated" for p in [*to_learn, *held]).most_common()),
        domains=dict(Counter(p.domain or "none" for p in [*to_learn, *held]).most_common()),
    )


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, then rename it."""
    part = path.with_name(f"{path.name}.part")
    write(part)
    part.replace(path)
