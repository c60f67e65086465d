"""The prompts of a training, and the target's answers to them: the training data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from ..core.roles import window_of
from ..errors import UserError
from ..inputs import parse_json, whole
from .settings import Run, Training

FORMAT, VERSION = "draftwise-answers", 1
GROUP = 4  # batches written together; a killed run loses at most one group

Tell = Callable[[str, int, int], None]
_WANTED = 'write {"prompt": "..."} or {"turns": ["..."]} on each line, "domain" beside it if you like'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the data, its domain, and the source of its text."""

    text: str
    domain: str
    source: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt's tokens and the target's answer at a temperature."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    temperature: float

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.tokens


def prompts(run: Run) -> tuple[list[Prompt], list[Prompt]]:
    """The training prompts and the held-out ones, in an order that depends only on the seed.

    Raises:
        UserError: a file cannot be read, has a line without a prompt, or too few are left.
    """
    known: dict[str, Prompt] = {}  # a held-out prompt must not be trained on
    rng = Random(f"prompts {run.seed}")
    for name in run.data:
        mine = [p for p in _read(Path(name).expanduser()) if p.domain.startswith(run.domain)]
        rng.shuffle(mine)
        known |= {p.text: p for p in mine[: run.limit or len(mine)]}
    found = list(known.values())
    rng.shuffle(found)
    if len(found) <= run.held_out:
        of = f" of domain {run.domain!r}" if run.domain else ""
        raise UserError(
            f"{len(found)} prompts{of} in {', '.join(run.data)} and {run.held_out} are held out: "
            "give more data, or a smaller --held-out"
        )
    return found[run.held_out :], found[: run.held_out]


def _read(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read the prompts in {path}: {reason}; name a JSONL file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = parse_json(line)
            text = row["prompt"] if "prompt" in row else row["turns"][0]
        except (ValueError, TypeError, KeyError, IndexError):
            raise UserError(f"{path}, line {number}: no prompt; {_WANTED}") from None
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{path}, line {number}: the prompt is not text; {_WANTED}")
        whole(text, f"{path}, line {number}:")
        source = str(row.get("source", "")).partition("@")[0].partition("==")[0]
        yield Prompt(text, str(row.get("domain", row.get("category", ""))), source)


# -- the target's answers --------------------------------------------------------------------------------


def answers(
    run: Training, encoded: Sequence[Sequence[int]], target: Any, tokenizer: Any, path: Path, tell: Tell
) -> list[Answer]:
    """Every prompt answered at every temperature, by the project's own decoder, and stored in a file.

    Prompts are answered in groups, each decoded independently and written as one line, so a run that is
    killed and resumed writes exactly the same text.

    Raises:
        UserError: the file exists and holds other prompts, another target's text, or is damaged.
    """
    jobs = [(list(ids), t, i) for i, ids in enumerate(encoded) for t in run.temperatures]
    jobs.sort(key=lambda job: len(job[0]))  # the longest row of a batch determines its cost
    size = run.together * GROUP
    groups = [jobs[at : at + size] for at in range(0, len(jobs), size)]
    done = _known(path, header(run, encoded, target), len(groups))
    with path.open("a", encoding="utf-8") as file:
        for number in range(len(done), len(groups)):
            tell("Target answers", number * size, len(jobs))
            done.append(_decoded(run, groups[number], target, tokenizer))
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
            os.fsync(file.fileno())
    tell("Target answers", len(jobs), len(jobs))
    pairs = zip(jobs, (tokens for group in done for tokens in group), strict=True)
    return [Answer(tuple(ids), tuple(tokens), t) for (ids, t, _), tokens in pairs if tokens]


def header(run: Training, encoded: Sequence[Sequence[int]], target: Any) -> dict[str, Any]:
    """The header of a file of answers: if any of it changes, it is another file."""
    from ..models.fingerprints import model_fingerprint

    asked = sha256(json.dumps([list(ids) for ids in encoded]).encode()).hexdigest()
    settings = {"temperatures": list(run.temperatures), "max_new_tokens": run.max_new_tokens}
    settings |= {"together": run.together, "seed": run.seed, "order": "length"}
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": model_fingerprint(target),
        "prompts": asked,
    } | settings


def _known(path: Path, header: dict[str, Any], groups: int) -> list[list[list[int]]]:
    """The finished groups; an incomplete last line of a killed run is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(header) + "\n", encoding="utf-8")
        part.replace(path)
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        said = lines[0]
        other = [key for key in header if said.get(key) != header[key]]
    except (ValueError, IndexError, AttributeError):
        raise UserError(f"{path} is no file of answers: remove it, or name another with --answers") from None
    if other:
        raise UserError(
            f"the answers in {path} differ in {', '.join(other)}: remove the file, or name another "
            "with --answers"
        )
    if len(lines) - 1 > groups:
        raise UserError(f"{path} holds {len(lines) - 1} groups where {groups} are wanted: remove it")
    return lines[1:]


def _decoded(
    run: Training, group: Sequence[tuple[list[int], float, int]], target: Any, tokenizer: Any
) -> Any:
    from ..core.sampling import Sampling
    from ..core.turn import unfailed
    from ..generation.decoder import Decoder

    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, policy="none")
    waiting, open_, out = list(enumerate(group)), dict[int, int](), dict[int, list[int]]()
    while waiting or open_:
        while waiting and len(open_) < run.together:
            place, (ids, temperature, number) = waiting.pop(0)
            seed = int(sha256(f"{run.seed} {number} {temperature}".encode()).hexdigest()[:8], 16)
            sampling = Sampling(
                max_new_tokens=run.max_new_tokens, temperature=temperature, eos=decoder.eos, seed=seed
            )
            open_[decoder.loop.add(ids, sampling).id] = place
        for round in unfailed(decoder.loop.step()):
            out.setdefault(open_[round.request], []).extend(round.tokens)
            if round.done:
                del open_[round.request]
    return [out[place] for place in range(len(group))]


def encoded(run: Training, found: Sequence[Prompt], target: Any, tokenizer: Any) -> list[list[int]]:
    """The prompts as tokens; prompts that leave no room for an answer are left out.

    Raises:
        UserError: none fits.
    """
    from ..generation.decoder import Decoder

    decoder = Decoder.from_pretrained(target, tokenizer=tokenizer, policy="none")
    window = window_of(decoder.loop.target) - run.max_new_tokens
    texts = [decoder.encode(p.text, chat=not run.raw) for p in found]
    fitting = [ids for ids in texts if len(ids) < window]
    if not fitting:
        raise UserError(
            f"no prompt and {run.max_new_tokens} tokens fit the target's window of "
            f"{window + run.max_new_tokens}: give shorter prompts or fewer --max-new-tokens"
        )
    return fitting
