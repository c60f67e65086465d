"""The terms of the report."""

from __future__ import annotations

from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "target": "The model that is made faster. Every token of the answer is one that it would have written.",
    "drafter": "A small model or a lookup that proposes the next tokens.",
    "draft length": "The number of tokens that a drafter proposes in a round.",
    "round": "One step of speculative decoding: a drafter proposes tokens, the target verifies them in one "
    "pass, and the accepted ones and one token of the target's own are added to the text.",
    "arm": "One choice of a policy: a drafter with a draft length or a stop rule, written "
    "`drafter:length~rule`, or `none`.",
    "policy": "What chooses the arm of each round. `auto` is the default policy.",
    "fixed arm": "A method with the same arm in every round.",
    "stop rule": "Ends a draft early, for example when the drafter is unsure of its next token.",
    "accepted": "Drafted tokens that the target confirmed.",
    "acceptance rate": "Accepted tokens divided by drafted tokens.",
    "block efficiency": "Tokens added to the text per round: the accepted ones and the target's own.",
    "plain decoding": "The target alone, one token per pass; the method `none`.",
    "speed-up": "Total time of plain decoding divided by that of the method, on the same prompts.",
    "95 % interval": "The middle 95 % of the speed-up over resampled prompts (bootstrap).",
    "mean of ratios": "The mean over prompts of tokens per second, divided by that of plain decoding.",
    "peer": "Another engine, measured on the same prompts.",
    "regret": "Rounds or time in excess of the best fixed arm in hindsight.",
    "optimum": "The least possible time over all choices of drafter and draft length at every position.",
    "oracle": "The method that takes the optimum; it knows the whole text in advance.",
}


def terms(simulated: bool) -> dict[str, str]:
    """The terms that a report uses; a simulation runs no model."""
    without = {"peer", "plain decoding", "speed-up", "95 % interval", "mean of ratios", "optimum", "oracle"}
    return {term: said for term, said in GLOSSARY.items() if not simulated or term not in without}
