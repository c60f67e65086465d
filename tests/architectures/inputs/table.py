"""What the sweep over inputs found, as the page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.architectures.judge import EQUAL, REFUSED, TIE, Verdict

from .cases import Case
from .hints import APART

HEAD = """# Models that read pictures, sound, or another text

Every class of Transformers {version} that writes text from images, sound or the text of an encoder (the
mappings of `AutoModelForImageTextToText`, `AutoModelForMultimodalLM`, `AutoModelForSeq2SeqLM` and
`AutoModelForSpeechSeq2Seq`), made small and random, and decoded [inside its own
`generate`](../how-to/transformers.md#images-sound-and-encoders) with good, spoilt and looked-up drafts: one
prompt, two rows (the second padded on the left), and several samples with their scores. The reference is
plain `generate`, in float32. This page is written by `python -m studies.exactness.inputs --table
docs/reference/inputs.md`; a part of the sweep runs with the tests.

- **equal**: every text is the model's own; a tie of two tokens by rounding counts as equal.
- **refused**: with the reason, before the first token.
- **not run here**: Transformers itself cannot be shown to write text with a small random model of the class,
  for the reason given. Nothing is known about it; the
  [trial](../how-to/transformers.md#images-sound-and-encoders) decides when it is used.

Inputs are found by trying the forms that processors make, and must matter: other pictures or sound change the
logits. Drafts must be taken: a class whose own `generate` ignores `custom_generate` is not counted as equal.

{counts}

"""


def table(found: Sequence[tuple[Case, Verdict]], version: str) -> str:
    """The page, models of one fate in one row."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for case, verdict in found:
        groups.setdefault(fate(case, verdict), []).append(case.name)
    lines = ["| models | read | result | notes |", "|---|---|---|---|"]
    order = (EQUAL, REFUSED, "not run here")
    for (result, task, note), names in sorted(
        groups.items(), key=lambda item: (order.index(item[0][0]) if item[0][0] in order else -1, item[0])
    ):
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {task} | {result} | {note} |")
    words = [fate(case, verdict)[0] for case, verdict in found]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys((*order, *words)))
    return (
        HEAD.format(version=version, counts=f"Of {len(words)} classes: {counts}.") + "\n".join(lines) + "\n"
    )


def fate(case: Case, verdict: Verdict) -> tuple[str, str, str]:
    """The result, what the class reads, and a note."""
    task = case.task.removesuffix("-to-text")
    why = " ".join(verdict.why.replace("|", "/").split())
    if not verdict.ways:
        return "not run here", task, APART.get(case.type) or note(why)
    if verdict.word in (EQUAL, TIE):
        ways = [way for way in ("batch", "several") if way not in verdict.ways]
        return EQUAL, task, f"its own `generate` takes no {' and no '.join(ways)} here" if ways else ""
    if verdict.word == REFUSED:
        reason = re.search(r"\((.*)\)", why)
        return REFUSED, task, (reason[1] if reason else why)[:160]
    return verdict.word, task, why[:160]


def note(why: str) -> str:
    """Why a class was not run, in few words."""
    if not why:
        return "not decoded for this edition"
    if "ImportError" in why:
        wanted = re.search(r"requires the (\S+) library|requires `(\w+)`", why)
        return (
            f"it needs {wanted[1] or wanted[2]}, which is not installed" if wanted else "it needs a package"
        )
    if "has no attribute 'generate'" in why:
        return "it has no `generate`"
    return "no inputs found" if why.startswith("LookupError") else "no small configuration found"
