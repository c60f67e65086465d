"""What the sweep found, as the page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .judge import CRASH, DIFFERENT, EQUAL, PARTED, REFUSED, TIE, Verdict

HEAD = """# Architectures

Every causal LM class of Transformers {version} and {variants} variants of their configurations, each
made small and random and decoded in every way: alone and in batches, of equal lengths, unequal lengths
and with texts that join; long prompts in pieces; past context windows and position tables; with good,
damaged, looked-up and no drafts, in chains and trees, as a draft model for itself, and with weights
fused and packed. The reference is plain `generate`, greedy, in float32. This page is written by `python -m
studies.exactness.sweep --table docs/reference/architectures.md`; a part of the sweep runs with the tests.

No list of names decides how a model is read. When a target or draft model is loaded, a **probe** reads a
few made-up tokens in these ways and compares the logits with those of the model's own `generate`. What
disagrees is switched off, and where nothing agrees the model is refused with the reason. A difference
counts from eight times the model's own rounding. The verdict is kept in the user's cache folder.
`probe=False`, or `DRAFTWISE_PROBE=0`, turns it off.

A class with an index, which leaves nothing out of a short text, is also tried as a **small model** with every
kind of its layers; so is every class at the first padded batch inside `generate`: see
[limits](limits.md#an-index-that-counts-padding).

- **one pass**: a batch is read in one pass, whatever the lengths of its texts.
- **equal widths**: padding would enter a state, so rows share a pass where theirs have equal width.
- **one by one**: each text of a batch is read in a pass of its own, because the class counts positions
  by the cache's length, computes its biases from a padding mask, or mixes the rows. Texts are the same;
  batches are no faster.
- **trees**: drafts may branch. Without trees, heads draft chains: `eagle?width=1`.
- **state**: recurrent, state-space or convolution layers keep a state that cannot rewind: it is restored
  from a snapshot, and accepted tokens are [read again](../explanation/states.md).
- **one token a pass**: the class ignores its state in passes of several tokens, so each token of a draft
  has a pass of its own. Texts are the same; drafts gain nothing.
- **parted**: past the length of its pretraining, the class's own code drops the cache, to read the text
  again, and then reads the last token alone. So its `generate` parts from its `generate(use_cache=False)`
  there; the text here is the latter, token for token, and its own to that length.

The own decoding of `recurrent_gemma` begins a text of a single token with the state that the text before it
left; here every text begins without one.

{counts}

"""


def table(verdicts: Sequence[Verdict], version: str) -> str:
    """The page, models of one fate in one row."""
    lines = ["| models | batches | trees | notes |", "|---|---|---|---|"]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for verdict in verdicts:
        groups.setdefault(_fate(verdict), []).append(verdict.name)
    ranked = sorted(groups.items(), key=lambda item: (_rank(item[0]), -len(item[1])))
    for (batches, trees, note), names in ranked:
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {shown} | {batches} | {trees} | {note} |")
    variants = sum("/" in verdict.name for verdict in verdicts)
    head = HEAD.format(version=version, variants=variants, counts=_counts(verdicts))
    return head + "\n".join(lines) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> str:
    """How many classes Transformers itself can decode with, and what became of them."""
    words = [verdict.word for verdict in verdicts if "/" not in verdict.name]
    run = [word for word in words if word != "not built"]
    fine = sum(word in (EQUAL, TIE, PARTED) for word in run)
    rest = ", ".join(f"{run.count(word)} {word}" for word in (PARTED, REFUSED, DIFFERENT, CRASH))
    return (
        f"Of {len(words)} classes Transformers itself decodes with {len(run)} here; {fine} of these "
        f"({100 * fine / len(run):.0f} %) are supported: {rest}."
    )


def _fate(verdict: Verdict) -> tuple[str, str, str]:
    why = verdict.why.replace("|", "/")
    if verdict.word == "not built":
        return "", "", f"not run by Transformers here: {why}"
    if verdict.word == REFUSED:
        reason = re.search(r"\((.*)\)", why)
        return "refused", "", reason[1] if reason else why.partition(": ")[2]
    if verdict.word not in (EQUAL, TIE, PARTED):
        return verdict.word, "", why
    trees = "yes" if verdict.ways["trees"] in (EQUAL, TIE, PARTED) else "no"
    note = "state" + "; one token a pass" * verdict.steps if verdict.stateful else ""
    note += PARTED * (verdict.word == PARTED)
    together = "equal widths" if verdict.stateful else "one pass"
    return ("one by one" if verdict.apart else together), trees, note


def _rank(fate: tuple[str, str, str]) -> tuple[int, str]:
    order = ("one pass", "equal widths", "one by one", "refused", "")
    return (order.index(fate[0]) if fate[0] in order else -1), (fate[1] == "no" and "z") or ""
