"""What vLLM does not pass to a proposer: request ids, budgets and ends; and patches of faults in vLLM 0.32.

Its CPU kernel that repeats a request's sampling settings for each drafted token writes integers only:
temperatures and top-p keep their old memory contents, so sampled drafts, including those of vLLM's own
methods, are accepted by a wrong distribution. A step without drafts also fails if a request uses top-k alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from typing import Any

from ..follow import Row

RUNNER = "vllm.v1.worker.gpu_model_runner"
MODELS = "vllm.v1.spec_decode.llm_base_proposer"
BESIDE = "draftwise"  # the attribute of vLLM's own proposer that has ours, and the mark of a wrapped method


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine, as seen by the model runner when it calls the proposer."""

    runner: Any
    scheduled: Any

    def is_alive(self, key: object) -> bool:
        """Return whether a request is still served, possibly preempted."""
        return key in self.runner.requests

    def rows(
        self,
        sampled: Sequence[Sequence[int]],
        token_ids: Any,
        max_length: int,
        overlaps: Sequence[Sequence[float]] = (),
    ) -> list[Row]:
        """Return the batch's requests, whose tokens are in `token_ids`, shape (requests, tokens).

        `overlaps` are the latest recorded ones, by row. Those of an earlier step, if this one verified no
        draft, are not used.
        """
        batch, drafted = self.runner.input_batch, self.scheduled.scheduled_spec_decode_tokens
        rows = []
        for i, new in enumerate(sampled):
            key = batch.req_ids[i]
            length, prompt = int(batch.num_tokens_no_spec[i]), int(batch.num_prompt_tokens[i])
            params = self.runner.requests[key].sampling_params
            room = max_length - length
            if params.max_tokens is not None:
                room = min(room, prompt + params.max_tokens - length)
            verified = len(drafted.get(key, ()))
            raw = overlaps[i] if verified and i < len(overlaps) else ()
            text = partial(_tokens, token_ids[i], length)
            rows.append(Row(key, length, new, text, prompt, room, verified, ends_of(params), raw))
        return rows


class Probabilities:
    """The target's raw probability of every drafted token, from the input of vLLM's rejection sampler.

    Used only by policies whose reward reads it (MetaSD's block divergence): it costs a softmax over the rows
    of drafted tokens.
    """

    def __init__(self, runner: Any) -> None:
        self._rows: list[list[float]] = []
        runner.rejection_sampler.register_forward_pre_hook(self._record)

    def take(self) -> list[list[float]]:
        """Return the probabilities of the latest pass, by row of the batch; empty if it had no drafts."""
        rows, self._rows = self._rows, []
        return rows

    def _record(self, sampler: Any, arguments: tuple[Any, ...]) -> None:
        metadata, _, logits = arguments[:3]
        rows = logits[metadata.target_logits_indices].float().log_softmax(-1)
        flat = rows.gather(1, metadata.draft_token_ids.long()[:, None])[:, 0].exp().tolist()
        self._rows, at = [], 0
        for count in metadata.num_draft_tokens:
            self._rows.append(flat[at : at + count])
            at += count


def _tokens(row: Any, end: int, start: int) -> list[int]:
    tokens: list[int] = row[start:end].tolist()
    return tokens


def ends_of(params: Any) -> frozenset[int]:
    """Return the tokens that end a text, from its sampling parameters."""
    ends = set(params.stop_token_ids or ())
    if params.eos_token_id is not None and not params.ignore_eos:
        ends.add(params.eos_token_id)
    return frozenset(ends)


def attach() -> bool:
    """Make the model runner announce every step to its proposer before the call: `drafter.listen(step)`.

    vLLM gives a proposer no request ids (0.32, 0.33), so its runner's method is wrapped, once per process.
    Where vLLM's own proposer has one of ours beside it, ours is called in its place: `drive(step, given)`,
    with the arguments of the method by name. Returns False if there is no such runner.
    """

    def wrap(ask: Any) -> Any:
        arguments = signature(ask)

        def propose(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            step = Step(self, scheduler_output)
            if (ours := getattr(self.drafter, BESIDE, None)) is not None:
                return ours.drive(step, arguments.bind(self, scheduler_output, *args, **kwargs).arguments)
            if (listen := getattr(self.drafter, "listen", None)) is not None:
                listen(step)
            return ask(self, scheduler_output, *args, **kwargs)

        return propose

    return _replace(RUNNER, "GPUModelRunner", "propose_draft_token_ids", wrap)


def attach_beside(build: Callable[[Any, Any], Any]) -> bool:
    """Put one of our proposers beside vLLM's own when that has loaded its model: `build(own, target)`.

    It is None for an engine that does not use Draftwise. Returns False if vLLM has no such class.
    """

    def wrap(load: Any) -> Any:
        def load_model(self: Any, target_model: Any, *args: Any, **kwargs: Any) -> None:
            load(self, target_model, *args, **kwargs)
            setattr(self, BESIDE, build(self, target_model))

        return load_model

    return _replace(MODELS, "SpecDecodeBaseProposer", "load_model", wrap)


def _replace(module: str, kind: str, name: str, wrap: Callable[[Any], Any]) -> bool:
    """Wrap a method of a class of vLLM's, once per process; returns False if there is none."""
    try:
        owner = getattr(import_module(module), kind)
        method = getattr(owner, name)
    except (ImportError, AttributeError):
        return False
    if not hasattr(method, BESIDE):
        ours = wraps(method)(wrap(method))
        setattr(ours, BESIDE, True)
        setattr(owner, name, ours)
    return True


# -- faults, detected by a test call and patched -------------------------------------------------------


def patch_faults(like: Any) -> list[str]:
    """Patch the faults found in this process; returns their names. `like` is any tensor of the device."""
    try:
        sampler: Any = import_module("vllm.v1.sample.rejection_sampler")
        found: dict[str, tuple[bool, Any]] = {
            "expand_batch_to_tokens": (_expands_wrongly(sampler, like), _expand),
            "apply_top_k_top_p": (
                _fails_when_empty(sampler, like),
                partial(_unless_empty, sampler.apply_top_k_top_p),
            ),
        }
    except (ImportError, AttributeError):
        return []  # another vLLM, which is left alone
    names = [name for name, (is_faulty, _) in found.items() if is_faulty]
    for name in names:
        setattr(sampler, name, found[name][1])
    return names


def _expands_wrongly(sampler: Any, like: Any) -> bool:
    """Return whether the kernel fails for two settings with one and two drafted tokens."""
    settings, ends = like.new_tensor([0.5, 0.25]).float(), like.new_tensor([1, 3]).int()
    return bool(sampler.expand_batch_to_tokens(settings, ends, 3).tolist() != [0.5, 0.25, 0.25])


def _fails_when_empty(sampler: Any, like: Any) -> bool:
    try:
        sampler.apply_top_k_top_p(like.new_zeros((0, 4)).float(), like.new_zeros(0).int(), None)
    except RuntimeError:
        return True
    return False


def _expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)).long()
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def _unless_empty(original: Any, logits: Any, k: Any, p: Any) -> Any:
    return original(logits, k, p) if logits.shape[0] else logits
