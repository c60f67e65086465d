"""Options that several policies share, as types with the help that `draftwise policies NAME` shows."""

from __future__ import annotations

from typing import Annotated

from ...registry import Within

Arms = Annotated[str, "what the arms differ in: drafters, lengths, stops, or products as drafters*lengths"]
Length = Annotated[int, "tokens in a draft, where arms do not differ in length"]
Longest = Annotated[int, "tokens in a draft at most"]
Lengths = Annotated[str, "the draft lengths of arms=lengths; 0 is plain decoding"]
Drafter = Annotated[str, "the only drafter to use; empty: the first one"]
Only = Annotated[str, "the only drafter to use; empty: all of them"]
REWARDS = "accepted, block-efficiency, block-divergence, simple, blended or rate (tokens/s)"
Reward = Annotated[str, REWARDS]
Usual = Annotated[str, f"{REWARDS}; empty: by the arms"]
PerQuery = Annotated[bool, "start learning again with every request"]
Printed = Annotated[bool, "the index as the paper prints it, where the usual one differs"]
Threshold = Annotated[float, "the threshold of the stop rule"]
Strength = Annotated[float, "factor on the confidence radius: less explores less", Within(0.0)]

Form = Annotated[str, "estimate of the losses: rb, ratio or product; empty: rb, or ratio if every > 1"]
Windows = Annotated[
    str, "where an arm's rounds begin: cursor (its own), all (every token) or rounds (played)"
]
Loss = Annotated[str, "length, or acceptance of the next token (windows=all only)"]
Censored = Annotated[str, "a window cut off by a rejection: wait for the text, or weight by importance"]
Every = Annotated[int, "grade model drafters once so many tokens wait"]
Thin = Annotated[int, "grade one window in so many"]
Play = Annotated[str, "sample an arm by the weights, or play the best one"]
Memory = Annotated[float, "factor on old losses at each update; 1 forgets nothing"]
