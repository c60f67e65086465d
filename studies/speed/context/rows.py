"""Where the rounds of `auto` began, what was known there, and how far each drafter was right."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.core.round import Round
from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.oracle import confirmed
from draftwise.measure.trace.stage import Stage
from draftwise.policies.auto.parts import match_length
from draftwise.policies.catalogue import method

Sure = Mapping[int, np.ndarray[Any, Any]]
"""By text: the target's greatest probability and its entropy for each token of the text."""
BUCKETS = 512  # of token ids
LONGEST = 16


@dataclass(frozen=True)
class Row:
    """One drafter at the beginning of one round: what was known, as classes, and which tokens were right."""

    features: Mapping[str, int]
    accepts: tuple[float, ...]


Text = list[dict[str, Row]]
"""The rounds of one text: a row for each drafter that had a draft."""


@dataclass
class _Past:
    """What the rounds so far have shown of each drafter in this text."""

    outcome: int = 0
    streak: dict[str, int] = field(default_factory=dict)

    def add(self, round: Round, row: Mapping[str, Row]) -> None:
        full = round.drafted > 0 and round.accepted == round.drafted
        self.outcome = 0 if not round.drafted else 1 if full else 2 if not round.accepted else 3
        for name, one in row.items():
            hit = bool(one.accepts and one.accepts[0])
            self.streak[name] = min(3, self.streak.get(name, 0) + 1) if hit else 0


def texts(trace: Trace, costs: Costs, sure: Sure) -> Iterator[Text]:
    """The rounds of every text as `auto` plays it."""
    loop = Replay(trace, method("auto", trace.team("auto")), costs)
    for number, recording in enumerate(trace):
        stage, past, at, found = Stage(recording), _Past(), 0, Text()
        right = {name: confirmed(stage, lines)[-1] for name, lines in stage.lines.items()}
        for round in loop.play(stage):
            row = dict(_rows(stage, at, right, past, sure.get(number), trace.header.drafters))
            found.append(row)
            past.add(round, row)
            at += len(round.tokens)
        yield found


def _rows(
    stage: Stage, at: int, right: Mapping[str, Any], past: _Past, sure: Any, grades: Mapping[str, bool]
) -> Iterator[tuple[str, Row]]:
    drafts = {name: _draft(stage, name, at) for name in right}
    lookups = {name: draft for name, draft in drafts.items() if not grades[name]}
    hints = {name: stage.lines[name].hint[at] for name in lookups}
    one = stage.recording
    last = stage.text[at - 1] if at else int(one.prompt[-1])
    for name, (tokens, _) in drafts.items():
        if not tokens:
            continue
        mine = [name] if name in lookups else list(lookups)
        others = [hints[other] for other in hints if other != name]
        said = max((drafts[which][1][0] for which in mine if drafts[which][1]), default=0.0)
        features = {
            "match": match_length(max((hints[which] for which in mine), default=0.0)),
            "other match": min(3, match_length(max(others, default=0.0))),
            "agreement": _agreement([tokens for tokens, _ in lookups.values()]),
            "lookup's share": bisect_left((0.01, 0.5, 0.7, 0.85), said),
            "last round": past.outcome,
            "recent hits": past.streak.get(name, 0),
            "position": bisect_left((0, 8, 32, 64), at),
            "last token": last % BUCKETS,
        }
        if sure is not None and at:
            features["target's top-1"] = 1 + bisect_left((0.4, 0.7, 0.9, 0.98), sure[at - 1][0])
            features["target's entropy"] = 1 + bisect_left((0.1, 0.4, 1.0, 2.0), sure[at - 1][1])
        n = int(right[name][at])
        accepts = (1.0,) * n + ((0.0,) if n < len(tokens) else ())
        yield name, Row(features, accepts)


def _draft(stage: Stage, name: str, at: int) -> tuple[list[int], list[float]]:
    lines = stage.lines[name]
    first, n = lines.span(at, lines.answers.start.shape[1])
    return lines.tokens[first : first + n], lines.answers.signals[first : first + n, 3].tolist()


def _agreement(drafts: Sequence[Sequence[int]]) -> int:
    """0 if fewer than two lookups have a draft, else 1, 2 or 3 for none, some or four common tokens."""
    if len(drafts) < 2 or not all(drafts):
        return 0
    common = 0
    for tokens in zip(*drafts, strict=False):
        if len(set(tokens)) > 1:
            break
        common += 1
    return 1 if not common else 2 if common < 4 else 3


def certainty(trace: Trace, target: str) -> Sure:
    """How sure the target was of each token of each text: one pass over every text."""
    import torch

    from draftwise import Decoder

    loaded: Any = Decoder.from_pretrained(target, drafters=[], policy="none").loop.target
    model, found = loaded.rows.model, {}
    for number, one in enumerate(trace):
        ids = torch.tensor([[*one.prompt.tolist(), *one.text[: one.committed].tolist()]])
        with torch.inference_mode():
            rows = model(ids).logits[0, one.prompt.size - 1 : -1].double().softmax(-1)
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        found[number] = torch.stack([rows.max(-1).values, entropy], 1).numpy()
    return found
