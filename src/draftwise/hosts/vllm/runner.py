"""Data of a step that vLLM's model runner has but does not pass to a proposer: request ids, budgets, ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from ..engine import Row

RUNNER = "vllm.v1.worker.gpu_model_runner"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, as seen by the model runner when it calls the proposer."""

    runner: Any
    scheduled: Any

    def alive(self, key: object) -> bool:
        """Whether a request is still served, possibly preempted."""
        return key in self.runner.requests

    def rows(
        self,
        sampled: Sequence[Sequence[int]],
        texts: Sequence[Callable[[int], list[int]]],
        most: int,
        overlaps: Sequence[Sequence[float]] = (),
    ) -> list[Row]:
        """The batch's requests; `texts` gives each one's tokens, and no text exceeds `most` of them.

        `overlaps` are the latest recorded ones, by row. Those of an earlier step, if this one verified no
        draft, are not used.
        """
        batch, drafted = self.runner.input_batch, self.scheduled.scheduled_spec_decode_tokens
        rows = []
        for i, new in enumerate(sampled):
            key = batch.req_ids[i]
            length, prompt = int(batch.num_tokens_no_spec[i]), int(batch.num_prompt_tokens[i])
            asked = self.runner.requests[key].sampling_params
            room = most - length
            if asked is not None and asked.max_tokens is not None:
                room = min(room, prompt + asked.max_tokens - length)
            verified = len(drafted.get(key, ()))
            raw = overlaps[i] if verified and i < len(overlaps) else ()
            rows.append(Row(key, length, new, texts[i], prompt, room, verified, ends_of(asked), raw))
        return rows


class Probabilities:
    """The target's raw probability of every drafted token, from the input of vLLM's rejection sampler.

    Used only by policies whose reward reads it (MetaSD's block divergence): it costs a softmax over the rows
    of drafted tokens.
    """

    def __init__(self, runner: Any) -> None:
        self._rows: list[list[float]] = []
        runner.rejection_sampler.register_forward_pre_hook(self._note)

    def take(self) -> list[list[float]]:
        """The probabilities of the latest pass, by row of the batch; empty if it had no drafts."""
        rows, self._rows = self._rows, []
        return rows

    def _note(self, sampler: Any, given: tuple[Any, ...]) -> None:
        metadata, _, logits = given[:3]
        rows = logits[metadata.target_logits_indices].float().log_softmax(-1)
        flat = rows.gather(1, metadata.draft_token_ids.long()[:, None])[:, 0].exp().tolist()
        self._rows, at = [], 0
        for count in metadata.num_draft_tokens:
            self._rows.append(flat[at : at + count])
            at += count


def ends_of(asked: Any) -> frozenset[int]:
    """The tokens that end a text, from its sampling parameters."""
    if asked is None:
        return frozenset()
    ends = set(asked.stop_token_ids or ())
    if asked.eos_token_id is not None and not asked.ignore_eos:
        ends.add(asked.eos_token_id)
    return frozenset(ends)


def attach(tell: str) -> bool:
    """Make the model runner announce every step to its proposer before the call: `drafter.<tell>(step)`.

    vLLM gives a proposer no request ids (0.32, 0.33), so its runner's method is wrapped, once per process.
    Returns False if there is no such runner; requests are then identified by their texts.
    """
    try:
        runner = import_module(RUNNER).GPUModelRunner
        ask = runner.propose_draft_token_ids
    except (ImportError, AttributeError):
        return False
    if getattr(ask, "draftwise", False):
        return True

    @wraps(ask)
    def propose(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        listen = getattr(self.drafter, tell, None)
        if listen is not None:
            listen(Step(self, scheduler_output))
        return ask(self, scheduler_output, *args, **kwargs)

    propose.draftwise = True  # type: ignore[attr-defined]
    runner.propose_draft_token_ids = propose
    return True
