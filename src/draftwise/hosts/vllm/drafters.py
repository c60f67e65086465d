"""vLLM's own proposers as drafters: for the requests, and to the lengths, that a policy wants.

vLLM has loaded the model of one, shares its embedding and manages its KV cache, and lets it read in every
step just what the target read. A step in which no request wants it does not call it, so that its cache gets
holes: it must read those positions first, from the text, and a head also from the target's hidden states
there, which are kept until it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.drafts import Draft, Job
from ...core.outcomes import Grade
from ...core.request import Request
from ...core.roles import Drafter, GradeJob
from ...errors import UserError, one_line
from .options import EngineDrafter
from .runner import Step

MOST_WAITING = 256  # positions of a request whose hidden states wait to be read
UNKNOWN = 0.5  # the grade of a position of which the drafter's guess was not seen


class Span(NamedTuple):
    """Positions `start` to `end` of the request in a row of the batch, to be read in one pass."""

    key: str
    row: int
    start: int
    end: int


@dataclass(slots=True)
class ReadState:
    """One request: the target has read `end` positions, the drafter the first `read` of them.

    `pieces` are hidden states of the latest positions, each with its first position; empty for a drafter
    that reads the text alone. `guesses` are the drafter's most likely tokens, by position in the text.
    """

    prompt: int = 0
    read: int = 0
    end: int = 0
    pieces: list[tuple[int, Any]] = field(default_factory=list)
    guesses: dict[int, int] = field(default_factory=dict)

    def advance(self, start: int, count: int, states: Any = None) -> None:
        """Record that the target read `count` positions from `start` on, which may be read a second time."""
        if self.end != start:
            self.pieces.clear()  # preempted, or without a step of ours between
        self.read, self.end = min(self.read, start), start + count
        if states is not None:
            self.pieces.append((start, states))

    def span(self, *, with_states: bool) -> tuple[int, int]:
        """Return the positions to read next: all that are not read, and the last one always."""
        start = min(self.read, self.end - 1)
        if with_states:
            start = max(start, self.pieces[0][0])
        return start, self.end

    def states(self, start: int, end: int) -> list[Any]:
        """Return the hidden states of positions, in pieces."""
        parts = (piece[max(0, start - first) : max(0, end - first)] for first, piece in self.pieces)
        return [part for part in parts if len(part)]

    def set_read(self, end: int) -> None:
        """Record that the drafter has read the positions before `end`; the last one's states are kept."""
        self.read = max(self.read, end)
        while len(self.pieces) > 1 and self.pieces[1][0] < end:
            self.pieces.pop(0)
        if self.pieces and (first := self.pieces[0][0]) < end - 1:
            # A copy frees the step's other states.
            self.pieces[0] = (end - 1, self.pieces[0][1][end - 1 - first :].clone())

    @property
    def waiting(self) -> int:
        """Return how many positions' states wait to be read."""
        return self.end - max(self.read, self.pieces[0][0]) if self.pieces else 0


class FilledBlocks:
    """How many leading positions of each block of the KV cache the drafter has read.

    Only so far does a request that finds its prompt in the cache find the drafter's keys and values, too.
    """

    def __init__(self, size: int) -> None:
        self.size, self.filled = size, Counter[int]()

    def write(self, blocks: Sequence[int], start: int, end: int, *, read: bool) -> None:
        """Record positions that the target wrote, or, with `read`, the drafter."""
        for index in range(start // self.size, (end - 1) // self.size + 1):
            block, first = int(blocks[index]), max(0, start - index * self.size)
            filled = self.filled[block]
            if not read:
                self.filled[block] = min(filled, first)
            elif filled >= first:
                self.filled[block] = max(filled, min(self.size, end - index * self.size))

    def prefix(self, blocks: Sequence[int], end: int) -> int:
        """Return how many of the first `end` positions the drafter has read without a hole."""
        for index in range(-(-end // self.size)):
            filled = self.filled[int(blocks[index])]
            if filled < self.size:
                return min(end, index * self.size + filled)
        return end


class ModelDrafter(Drafter):
    """Drafts with the model of vLLM's own proposer (`SpecDecodeBaseProposer` and its subclasses).

    It is always ready, and reads a text when it drafts.

    `begin` and `end` enclose one step of the engine. `key_of` returns vLLM's id of a request. With tensor
    parallelism (`group`) the first rank calls the drafter and every rank runs the same passes (`follow`).
    """

    begins_cascades = False  # its draft is one call: a lookup cannot take over within it
    has_probabilities = False  # that a stop rule could read: vLLM keeps them

    def __init__(
        self, name: EngineDrafter, proposer: Any, key_of: Callable[[int], Any], group: Any = None
    ) -> None:
        self.name, self.proposer, self.key_of, self.group = name, proposer, key_of, group
        self.reads_states = bool(proposer.pass_hidden_states_to_model)
        # From the pair of a token and the state before it a head guesses the token after: one position later.
        self.offset = 2 if self.reads_states else 1
        self.requests: dict[str, ReadState] = {}
        self.rows: dict[str, int] = {}
        self.probabilities: dict[str, Tensor] = {}
        self.ended: set[str] = set()
        self.passes = 0
        self._grades = False  # from the first call of `grade` on the guesses of all positions are kept
        self._outputs: Any = None
        proposer.model.register_forward_hook(self._record)

    @cached_property
    def blocks(self) -> FilledBlocks:
        """What of the KV cache was read; vLLM chooses its blocks' size after it has loaded the model."""
        return FilledBlocks(self.proposer.block_size)

    # -- a step of the engine ----------------------------------------------------------------------------

    def begin(self, step: Step, given: Mapping[str, Any]) -> None:
        """Receive what the target read in this step: `given` are vLLM's arguments for its own proposer."""
        self.step, self.batch = step, step.runner.input_batch
        self.metadata, self.sampling = given["common_attn_metadata"], given["sampling_metadata"]
        self.probabilities.clear()
        self.ended.clear()
        self.rows = {key: row for row, key in enumerate(self.batch.req_ids)}
        for key in [key for key in self.requests if key not in self.rows and not step.is_alive(key)]:
            del self.requests[key]
        self.table = self.batch.block_table[max(0, self.proposer.kv_cache_gid)].get_numpy_array()
        self._advance(target_states(step, given) if self.reads_states else None, given["sampled_token_ids"])

    def _advance(self, states: Tensor | None, sampled: Sequence[Sequence[int]]) -> None:
        scheduled, at = self.step.scheduled, 0
        drafts = scheduled.scheduled_spec_decode_tokens
        for key, row in self.rows.items():
            count, start = scheduled.num_scheduled_tokens[key], int(self.batch.num_computed_tokens_cpu[row])
            drafted, new = len(drafts.get(key, ())), len(sampled[row])
            right = count - (drafted + 1 - new if drafted and new else 0)
            state = self.requests.get(key)
            if state is None:
                state = self.requests[key] = ReadState(int(self.batch.num_prompt_tokens[row]), end=start)
                state.read = self._cached(row, start)
            state.advance(start, right, None if states is None else states[at : at + right])
            self.blocks.write(self.table[row], start, start + count, read=False)
            at += count

    def _cached(self, row: int, start: int) -> int:
        """Return how much of a prompt that the target found in its cache the drafter has read as well.

        A head cannot read it again, without the target's hidden states there: the hole stays.
        """
        return start if self.reads_states else self.blocks.prefix(self.table[row], start)

    def end(self, drafts: Sequence[Sequence[int]]) -> Tensor | None:
        """Read what has waited too long; return the drafts' distributions, shape (rows, tokens, vocabulary).

        None if no token was sampled: all drafts are then deterministic for vLLM.
        """
        self._read(
            [key for key in self.rows if key in self.ended or self.requests[key].waiting > MOST_WAITING]
        )
        self._tell(None)
        if not self.probabilities:
            return None
        like, longest = next(iter(self.probabilities.values())), max(map(len, drafts))
        rows = like.new_zeros((len(drafts), max(longest, 1), like.shape[-1]))
        for key, row in self.rows.items():
            length = len(drafts[row])
            if (mine := self.probabilities.get(key)) is not None:
                rows[row, :length] = mine[:length]
            elif length:
                rows[row].scatter_(1, torch.tensor(drafts[row], device=rows.device)[:, None], 1.0)
        return rows

    # -- the drafter's role ------------------------------------------------------------------------------

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Draft for all jobs in one call, as far as the longest of them asks; the others are cut."""
        keys = [self.key_of(job.request.id) for job in jobs]
        tokens = self._run(keys, max(job.length for job in jobs))
        return [Draft.chain(mine[: job.length]) for job, mine in zip(jobs, tokens, strict=True)]

    def grade(self, jobs: Sequence[GradeJob]) -> list[list[Grade]]:
        """Return 1 for each token that was the drafter's most likely one, else 0."""
        self._grades = True
        keys = [self.key_of(job.request.id) for job in jobs]
        self._read([key for key in keys if key in self.rows])
        grades = []
        for key, job in zip(keys, jobs, strict=True):
            state, text = self.requests.get(key, ReadState()), job.request.tokens
            guesses = [state.guesses.get(at) for at in range(job.start, len(text))]
            pairs = zip(guesses, text[job.start :], strict=True)
            grades.append(
                [Grade(UNKNOWN if guess is None else float(guess == token)) for guess, token in pairs]
            )
        return grades

    def close(self, request: Request) -> None:
        """Note a text that has ended: `end` reads the rest of it, as others may find its blocks in the cache.

        A draft model could read it later.
        """
        if self.reads_states and self.step.runner.cache_config.enable_prefix_caching:
            self.ended.add(self.key_of(request.id))

    # -- passes of the model -----------------------------------------------------------------------------

    def follow(self) -> None:
        """Run the passes that the first rank runs, until it has ended its step."""
        while (command := self._tell(None, listen=True)) is not None:
            self._pass(*command)

    def _read(self, keys: Sequence[str]) -> None:
        """Read all that these requests have not read, without a draft."""
        if keys := [key for key in keys if self.requests[key].read < self.requests[key].end]:
            self._run(keys, 0)

    def _run(self, keys: Sequence[str], length: int) -> list[list[int]]:
        """Read what is not read, in passes that fit, and draft `length` tokens for each request."""
        limit, last = int(self.proposer.max_num_tokens), list[Span]()
        for key in keys:
            start, end = self.requests[key].span(with_states=self.reads_states)
            last.append(Span(key, self.rows[key], start, end))
        if sum(span.end - span.start + 1 for span in last) > limit:
            for at, span in enumerate(last):
                for start in range(span.start, span.end - 1, limit - 1):
                    self._command([span._replace(start=start, end=min(start + limit - 1, span.end - 1))], 0)
                last[at] = span._replace(start=span.end - 1)
        return self._command(last, length)

    def _command(self, spans: list[Span], length: int) -> list[list[int]]:
        self._tell((spans, length, self._grades))
        return self._pass(spans, length, self._grades)

    def _tell(self, command: Any, *, listen: bool = False) -> Any:
        """Pass a command from the first rank to the others; `listen` is theirs."""
        if self.group is None or self.group.world_size == 1:
            return command
        return self.group.broadcast_object(None if listen else command, src=0)

    def _pass(self, spans: Sequence[Span], length: int, grades: bool) -> list[list[int]]:
        """Run the model once over the spans, and `length - 1` times to draft; no tokens with length 0."""
        self.passes += 1
        sampling, rows = self.sampling, [span.row for span in spans]
        if sampling.temperature is not None:
            sampling = replace(sampling, temperature=sampling.temperature[rows])
        inputs, self._outputs = self._inputs(spans), None
        drafted = self.proposer.propose(
            num_speculative_tokens=length, sampling_metadata=sampling, mm_embed_inputs=None, **inputs
        )
        if grades:
            self._keep_guesses(spans)
        for span in spans:
            self.requests[span.key].set_read(span.end)
            self.blocks.write(self.table[span.row], span.start, span.end, read=True)
        if not length:
            return [[] for _ in spans]
        if (rows_of := self.proposer.take_last_draft_probs()) is not None:
            self.probabilities |= {span.key: rows_of[at] for at, span in enumerate(spans)}
        tokens: list[list[int]] = drafted.tolist()
        return tokens

    def _inputs(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the inputs of vLLM's `propose` for the tokens of these spans."""
        device, text = self.proposer.device, self.batch.token_ids_cpu
        counts = np.array([span.end - span.start for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        tokens = np.concatenate([text[span.row, span.start : span.end] for span in spans])
        size, table = self.proposer.block_size, self.table[[span.row for span in spans]]
        owner = np.repeat(np.arange(len(spans)), counts)
        slots = table[owner, positions // size].astype(np.int64) * size + positions % size

        def on_device(numbers: Any, kind: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(numbers, dtype=kind)).to(device)

        reads = spans if self.reads_states else ()
        states = [piece for span in reads for piece in self.requests[span.key].states(span.start, span.end)]
        starts = np.concatenate([[0], np.cumsum(counts)])
        ends = np.array([span.end for span in spans])
        metadata: dict[str, Any] = {
            "query_start_loc": on_device(starts, np.int32),
            "query_start_loc_cpu": torch.from_numpy(starts.astype(np.int32)),
            "seq_lens": on_device(ends, np.int32),
            "seq_lens_cpu_upper_bound": torch.from_numpy(ends.astype(np.int32)),
            "num_reqs": len(spans),
            "num_actual_tokens": int(starts[-1]),
            "max_query_len": int(counts.max()),
            "max_seq_len": int(ends.max()),
            "block_table_tensor": self.metadata.block_table_tensor[[span.row for span in spans]],
            "slot_mapping": on_device(slots, np.int64),
            "causal": True,
        }
        kind = type(self.metadata)
        named = {field.name for field in fields(kind)}
        return {
            "target_token_ids": on_device(tokens, np.int32),
            "target_positions": on_device(positions, np.int64),
            "target_hidden_states": torch.cat(states) if states else None,
            "next_token_ids": on_device([text[span.row, span.end] for span in spans], np.int32),
            "token_indices_to_sample": None,
            "common_attn_metadata": kind(**{key: value for key, value in metadata.items() if key in named}),
        }

    def _record(self, module: Any, arguments: Any, outputs: Any) -> None:
        """Keep the hidden states of the first forward of a pass: a hook of the model."""
        if self._outputs is None:
            self._outputs = outputs[0] if isinstance(outputs, tuple) else outputs

    def _keep_guesses(self, spans: Sequence[Span]) -> None:
        """Keep the most likely token after each position of an answer."""
        if self._outputs is None:  # a replayed graph, which runs no hook
            return
        places, at = list[tuple[str, int, int]](), 0
        for span in spans:
            state = self.requests[span.key]
            for place in range(max(span.start, state.prompt - self.offset), span.end - self.offset + 2):
                places.append((span.key, place + self.offset, at + place - span.start))
            at += span.end - span.start + (0 if self.reads_states else 1)
        if places:
            rows = self._outputs[[row for _, _, row in places]]
            best = self.proposer.model.compute_logits(rows).argmax(-1).tolist()
            for (key, position, _), token in zip(places, best, strict=True):
                self.requests[key].guesses[position] = token


def target_states(step: Step, given: Mapping[str, Any]) -> Tensor:
    """Return what a head reads of the target: its hidden states for all tokens of the step."""
    count = int(step.scheduled.total_num_scheduled_tokens)
    if step.runner.use_aux_hidden_state_outputs:
        return torch.cat([states[:count] for states in given["aux_hidden_states"]], dim=-1)
    other = getattr(step.runner.get_model(), "get_mtp_target_hidden_states", lambda: None)()
    states: Tensor = given["hidden_states"] if other is None else other
    return states[:count].clone()  # the engine writes the next step's into the same memory


class NgramDrafter(Drafter):
    """Drafts with vLLM's `NgramProposer`, from the engine's own copy of the texts; it keeps nothing.

    Raises:
        UserError: this vLLM has none.
    """

    has_probabilities = False

    def __init__(self, name: EngineDrafter, config: Any) -> None:
        self.longest = int(config.speculative_config.num_speculative_tokens)
        self.least = float(name.least)
        lengths = {"prompt_lookup_min": name.least, "prompt_lookup_max": name.most}
        speculative = SimpleNamespace(num_speculative_tokens=self.longest, **lengths)
        view = SimpleNamespace(**vars(config) | {"speculative_config": speculative})
        try:
            self.proposer = import_module("vllm.v1.spec_decode.ngram_proposer").NgramProposer(view)
        except Exception as error:  # another release
            raise UserError(
                f"drafter {name.text}: this vLLM has no such lookup ({one_line(error)})"
            ) from None

    def begin(self, rows: Mapping[Hashable, int], texts: Any, key_of: Callable[[int], Hashable]) -> None:
        """Receive the texts of a step, shape (requests, tokens), and the row of each request."""
        self.rows, self.texts, self.key_of = rows, texts, key_of

    def hint(self, request: Request) -> float:
        """Return the least length of a match if there is one, else 0: vLLM does not tell the length."""
        return self.least if self._draft(request) else 0.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        """Return the text that follows the latest match, for each job."""
        return [Draft.chain(self._draft(job.request)[: job.length]) for job in jobs]

    def _draft(self, request: Request) -> list[int]:
        """Return the longest draft after the request's text, which may be shorter than the engine's."""
        row = self.rows[self.key_of(request.id)]
        lengths = np.zeros(len(self.texts), dtype=np.int32)
        lengths[row] = len(request.tokens)
        wanted: list[list[int]] = [[0] if at == row else [] for at in range(row + 1)]
        drafts: list[list[int]] = self.proposer.propose(self.longest, wanted, lengths, self.texts)
        return drafts[row]
