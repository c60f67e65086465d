"""The folder of one training: the model, and in `training` everything needed to resume a killed run.

OUT/README.md, curves.png, results.json, the model's own files
OUT/training/run.yaml, numerics.json, answers.jsonl, checkpoints/
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import UserError
from ..inputs import expanded, parse_json
from ..models.load import check_vocabulary, load_model, load_tokenizer
from ..writing import write_json, write_text
from .settings import Run, Training, as_plain, check_packages
from .steps import in_half, on_cpu, removed_on_error
from .texts import Answer, Budget, Tell, Writer, answers, encoded, prompts

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Prepare = Callable[[Any, Any, Any], Any]
"""Loads or makes what is trained or judged, from options, target and tokenizer."""


class Folder:
    """The paths of a training, which writes to `out`."""

    def __init__(self, out: Path) -> None:
        self.out, self.work, self.name = out, out / "training", out.absolute().name
        self.is_new = False
        self.checkpoints, self.numerics = self.work / "checkpoints", self.work / "numerics.json"

    def claim(self, verb: str, run: Run) -> dict[str, Any] | None:
        """Make the folder, or resume in it; returns the results of a finished training.

        A training that failed before it saved a step, for example because of a misspelt name or too high a
        rate, leaves nothing to resume: other options replace its own. The target's answers stay if they fit.

        Raises:
            UserError: it holds another training, or something else.
        """
        check_packages()
        import yaml

        options = {"train": verb, **as_plain(run)}
        text = yaml.safe_dump(options, sort_keys=False)
        file = self.work / "run.yaml"
        if file.exists():
            there = self._read(file)
            other = sorted(k for k in options.keys() | there.keys() if options.get(k) != there.get(k))
            if "train" in other and self._has_begun():
                raise UserError(
                    f"{self.out} holds what `draftwise train {there.get('train')}` writes: give another --out"
                )
            if other and not self._has_begun():
                for earlier in (self.numerics, self.work / "before.json"):
                    earlier.unlink(missing_ok=True)
                write_text(file, text)
            elif other:
                raise UserError(
                    f"{self.out} holds a training with another {', '.join(other)}: give the same options to "
                    "continue with it, or another --out"
                )
        elif self.out.exists() and not (self.out.is_dir() and set(self.out.iterdir()) <= {self.work}):
            raise UserError(f"{self.out} is there and holds no training: give a new folder as --out")
        else:
            try:
                self.is_new = not self.out.exists()
                self.work.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"cannot make {self.work}: {error.strerror}; give another --out") from error
            write_text(file, text)
        results = self.out / "results.json"
        return self._read(results) if results.exists() else None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Say of a full disk what to do; remove what `claim` wrote if no more was written before an error.

        Raises:
            UserError: the disk is full.
        """
        try:
            with explain_full_disk(self.out):
                yield
        except UserError:
            own = {self.work / "run.yaml", self.numerics}
            if self.work.is_dir() and set(self.work.iterdir()) <= own and not self._has_begun():
                shutil.rmtree(self.work)
                if self.is_new:
                    self.out.rmdir()
            raise

    def _read(self, file: Path) -> dict[str, Any]:
        import yaml

        try:
            text = file.read_text(encoding="utf-8")
            values = yaml.safe_load(text) if file.suffix == ".yaml" else parse_json(text)
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            values = None
        if not isinstance(values, dict):
            raise UserError(f"{file} is damaged: give a new folder as --out")
        return values

    def _has_begun(self) -> bool:
        """Whether the folder holds anything that was learned."""
        saved = (path for path in self.checkpoints.glob("*") if path.suffix != ".part")
        return any(saved) or set(self.out.iterdir()) != {self.work}

    def once(self, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return what was measured before training; a resumed run reads it from the folder."""
        file = self.work / f"{name}.json"
        if not file.exists():
            write_text(file, json.dumps(measure()))
        return self._read(file)

    def deliver(self, write: Callable[[Path], None], results: dict[str, Any]) -> dict[str, Any]:
        """Write files to a temporary folder, then move each in atomically; last of all the results, which
        mark a training as finished and to which `write` may add."""
        part = self.work / "delivery.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        with removed_on_error(part):
            write(part)
        mode = (self.work / "run.yaml").stat().st_mode  # Safetensors' own mode is owner-only
        for file in sorted(part.iterdir()):
            if file.is_dir():  # such as a tokenizer's further chat templates
                shutil.rmtree(self.out / file.name, ignore_errors=True)
            else:
                file.chmod(mode)
            file.replace(self.out / file.name)
        part.rmdir()
        write_json(self.out / "results.json", results)
        return results


@contextmanager
def explain_full_disk(out: Path) -> Iterator[None]:
    """Turn the errors of a full disk into one line that names the remedy.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = str(error).partition("I/O error: ")[2]  # of Safetensors, which has no number
        if isinstance(error, OSError) and error.errno in FULL:
            reason = str(error.strerror)
        if not reason:
            raise
        raise UserError(
            f"cannot write to {out}: {reason}; make room, and the same command continues"
        ) from error


@dataclass(frozen=True, slots=True)
class Material:
    """The data of a training: the target, its answers and their `file`, held-out prompts, and what was
    `prepared` for it."""

    target: Any
    tokenizer: Any
    file: Path
    answers: list[Answer]
    held_out: list[Answer]
    measuring: list[list[int]]
    sources: dict[str, int]
    domains: dict[str, int]
    budget: Budget | None = None
    prepared: Any = None


def load_drafter(name: str, run: Training, target: Any, tokenizer: Any, **options: Any) -> Any:
    """Load a model with the target's vocabulary, on the target's device.

    Raises:
        UserError: there is none, or its vocabulary is another.
    """
    trust: dict[str, Any] = {"trust_remote_code": run.trust_remote_code}
    check_vocabulary(name, load_tokenizer(name, **trust), run.target, tokenizer)
    return load_model(name, device=target.device, **options, **trust)


def gather(run: Training, folder: Folder, tell: Tell, prepare: Prepare) -> Material:
    """Load the target, read the prompts, `prepare`, and generate the target's answers to all prompts."""
    to_learn, held_prompts = prompts(run)
    trust: dict[str, Any] = {"trust_remote_code": run.trust_remote_code}
    tokenizer = load_tokenizer(run.target, **trust)
    dtype = "auto" if in_half(run) and not on_cpu(run) else "float32"  # speed is measured in float32 on a CPU
    target = load_model(run.target, dtype=dtype, device=run.device, **trust)
    target.requires_grad_(False)
    writer = Writer(target, tokenizer, half=in_half(run))
    learning, measuring = (encoded(run, some, writer) for some in (to_learn, held_prompts))
    prepared = prepare(run, target, tokenizer)  # what is refused, is before the long work
    path = expanded(run.answers) if run.answers else folder.work / "answers.jsonl"
    every, budget = [*measuring, *learning], None
    if run.minutes:
        budget = Budget(run.minutes, folder.work / "seconds.json")
    texts = answers(run, every, writer, path, tell, first=len(measuring), budget=budget)
    apart = {tuple(ids) for ids in measuring}
    everyone = [*to_learn, *held_prompts]
    return Material(
        target=target,
        tokenizer=tokenizer,
        file=path,
        answers=[one for one in texts if one.prompt not in apart],
        held_out=[one for one in texts if one.prompt in apart],
        measuring=measuring,
        budget=budget,
        prepared=prepared,
        sources=_counted(re.split("@|==", p.source)[0] or "not stated" for p in everyone),  # no versions
        domains=_counted(p.domain or "none" for p in everyone),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
