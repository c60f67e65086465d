"""Draftwise inside SGLang: the draft length of every batch, in the slot of its adaptive speculative decoding.

SGLang drafts and verifies; a policy chooses how many tokens, for the whole batch. The slot shows how many of
each request's drafted tokens were correct, and neither texts nor ids: a row of the batch counts as a request.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from logging import getLogger
from math import isfinite, nan
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from ..core.arms import NEVER, Arm, Context, Decision
from ..core.drafter_pool import DrafterPool
from ..core.drafts import Draft, Verdict
from ..core.fault_barrier import FaultBarrier
from ..core.outcomes import Feedback, RoundCost, Window
from ..core.request import ENDLESS, Request
from ..core.request_round import RequestRound
from ..core.sampling import Sampling
from ..errors import UserError
from ..policies.auto.chances import match_length
from ..policies.auto.policy import AutoPolicy
from ..policies.auto.recorder import AutoRecorder
from ..policies.catalogue import Method, method
from ..policies.recorders.bandit import Bandit
from ..registry import entry
from ..specs import DrafterSpec, parse_policy
from ..state.file import Saver, StateFile, usable
from .follow import TextScores

CONTROLLER = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.__init__"
PARALLEL = "sglang.srt.distributed"
SECTION = "draftwise"  # of the file of --speculative-adaptive-config, of which SGLang reads the numbered ones
OPTIONS = {"policy": str, "state": str, "seed": int}
DRAFTER = "sglang"
READY = {DRAFTER: 1.0}  # its hint
# Without drafts nothing is tested: what `auto` knows of them fades, so that they are tried again.
UNTESTED = Window(0, match_length(READY[DRAFTER]), ())
SAMPLING = Sampling(max_new_tokens=ENDLESS)
RIGHT, OTHER, UNKNOWN = 1, 0, -1  # tokens of a row: drafted and accepted, the target's own, the one before
MOST_PENDING = 8  # steps without a result, of which SGLang has at most two
SAVE_SECONDS = 30.0


@dataclass(slots=True)
class Tier:
    """Batch sizes with the same candidates; `initial` is the length where their policy fails."""

    steps: Sequence[int]
    initial: int
    barrier: FaultBarrier | None = None  # of the policy, if there is a choice

    @property
    def plans(self) -> bool:
        """Whether the policy decides for each row of a batch."""
        return self.barrier is not None and self.barrier.planner is not None


@dataclass(slots=True)
class Step:
    """A step of the engine; its seconds are those of its length only if it `is_timed`."""

    tier: Tier
    steps: int
    decision: Decision | None = None
    batch_size: int = 0
    is_timed: bool = False


class LengthPolicy:
    """Chooses the length of each batch: SGLang's protocol `AdaptiveSpecPolicy`.

    `candidates` are lengths by the least batch size that they are for; each has a policy of its own. A step
    takes the seconds from the result before it to its own. Not counted are steps after a prefill, and
    the first of another length, which is therefore repeated. With tensor parallelism (`group`) seconds
    differ by rank: the first rank decides for all. If the policy raises, the length is the `initial` one.

    Raises:
        UserError: a policy whose arms are not these lengths of SGLang's drafter, or an unusable state file.
    """

    def __init__(
        self,
        candidates: Mapping[int, Sequence[int]],
        initial: int,
        *,
        policy: str = "auto",
        state: str = "",
        seed: int = 0,
        target: str = "",
        drafter: str = DRAFTER,
        group: Any = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.group = group if group is not None and group.world_size > 1 else None
        self.decides = self.group is None or self.group.rank_in_group == 0
        self.rng, self.clock = Random(seed), clock
        self.tiers: dict[int, Tier] = {}
        self.savers: list[Saver] = []
        drafters = {DRAFTER: DrafterSpec(DRAFTER, text=drafter)}
        of: dict[str, Any] = {"name": policy, "target": target, "drafters": drafters}
        for size in sorted(candidates):
            steps = sorted(set(candidates[size]))
            tier = Tier(steps, max((n for n in steps if n <= initial), default=steps[0]))
            self.tiers[size] = tier
            if len(steps) == 1:
                continue
            chosen = lengths_method(policy, steps)
            tier.barrier = FaultBarrier(chosen.policy, chosen.recorder, READY, {})
            if state and self.decides:
                path = usable(Path(state).with_stem(f"{Path(state).stem}.{size}"))
                self.savers.append(Saver(StateFile.of(path, chosen.policy, **of)))
                self.savers[-1].state.load()
        self.graders = DrafterPool({}, vocab_size=2)  # grades nothing: no drafter can be asked
        self._sizes = list(self.tiers)
        self._graph_sizes: list[int] | None = None
        self._pending: deque[Step] = deque(maxlen=MOST_PENDING)
        self._waiting: Step | None = None
        self._steps, self._batch, self._has_prefilled, self._is_faulty = initial, 0, False, False
        self._ended, self._saved = nan, clock()
        if self.savers:
            Finalize(self, self.save, exitpriority=10)

    @property
    def candidate_steps(self) -> list[int]:
        """All lengths, for which SGLang prepares its passes."""
        return sorted({n for tier in self.tiers.values() for n in tier.steps})

    def set_cuda_graph_bs(self, cuda_graph_bs: Sequence[int] | None) -> None:
        """Receive the batch sizes that have graphs; any other batch is padded to the next of them."""
        self._graph_sizes = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the batch sizes with graphs that may use this length; None without graphs."""
        if self._graph_sizes is None:
            return None
        return [size for size in self._graph_sizes if step in self._tier(size).steps]

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the length of the next step; SGLang calls it before each, on all ranks."""
        if self.decides and batch_size > 0:
            self._steps = self._next(batch_size)
        if self.group is not None:
            self._steps = int(self.group.broadcast_object(self._steps, src=0))
        return self._steps

    def on_verify_complete(
        self,
        num_correct_drafts_per_req: Sequence[int],
        batch_size: int,
        num_steps: int | None = None,
        **more: Any,
    ) -> None:
        """Learn from the oldest step without a result; with overlapped scheduling the next one runs by now.

        `num_steps`, from SGLang's pull request 28045, is its length. None is returned: the length changes
        only in `get_steps_for_batch`.
        """
        now = self.clock()
        seconds, self._ended = now - self._ended, now
        if not self._pending:
            return
        step, correct = self._pending.popleft(), list(num_correct_drafts_per_req)
        is_same = num_steps in (None, step.steps) and max(correct, default=0) <= step.steps
        if is_same and step.batch_size == batch_size == len(correct):
            self._learn(step, correct, seconds)
        else:
            self._forget(step)
        for saver in self.savers:
            saver.finish()
        if now - self._saved >= SAVE_SECONDS:
            self._saved = now
            for saver in self.savers:
                saver.start()

    def on_state_activated(self, *arguments: Any, **more: Any) -> None:
        """Count no seconds of a switch between lengths, which the pull request 28045 announces."""
        self._ended = nan

    def prefill(self) -> None:
        """Note that the engine reads prompts before its next step."""
        self._has_prefilled = True

    def save(self) -> None:
        """Save what the policies have learned, if there is a state file."""
        for saver in self.savers:
            saver.end()

    def _tier(self, batch_size: int) -> Tier:
        sizes = self._graph_sizes or []
        at = bisect_left(sizes, batch_size)
        padded = sizes[at] if at < len(sizes) else batch_size
        return self.tiers[self._sizes[max(0, bisect_right(self._sizes, padded) - 1)]]

    def _next(self, batch_size: int) -> int:
        """Decide on the next step; the first one of another length is not priced but repeated."""
        tier, step = self._tier(batch_size), self._waiting
        is_timed = not self._has_prefilled and batch_size <= self._batch  # a larger one had a prefill
        if step is None or step.tier is not tier or (tier.plans and step.batch_size != batch_size):
            if step is not None:
                self._forget(step)
            step = self._decide(tier, batch_size)
        waiting = None
        if step.steps != self._steps:
            step.batch_size = batch_size
            waiting, step = step, Step(tier, step.steps)
        step.batch_size, step.is_timed = batch_size, is_timed
        self._has_prefilled, self._batch, self._waiting = False, batch_size, waiting
        self._pending.append(step)
        return step.steps

    def _decide(self, tier: Tier, batch_size: int) -> Step:
        """Ask the policy once, or for each row if it plans a batch; it may leave out a round."""
        barrier = tier.barrier
        if barrier is None:
            return Step(tier, tier.initial)
        rests, fault = barrier.rests(batch_size) if batch_size > 1 else (False, "")
        if rests:
            return Step(tier, tier.steps[0])
        contexts = [Context(row, batch_size, hints=READY) for row in range(batch_size if tier.plans else 1)]
        fault = (barrier.plan(contexts) if len(contexts) > 1 else "") or fault
        choices = [barrier.choose(context, self.rng) for context in contexts]
        if fault := next((error for *_, error in choices if error), fault):
            self._report(fault)
            return Step(tier, tier.initial)
        decision, arm, _ = max(choices, key=lambda choice: choice[1].length)
        length = arm.length if arm.length in tier.steps else tier.steps[0]
        played = [one.length for one in barrier.policy.arms].index(length)
        return Step(tier, length, replace(decision, arm=played))

    def _learn(self, step: Step, correct: Sequence[int], seconds: float) -> None:
        tier, decision = step.tier, step.decision
        if tier.barrier is None or decision is None:
            return
        rows, width, records = len(correct), 1 + step.steps, []
        cost = RoundCost(0.0, seconds if step.is_timed else nan, rows * width, rows, width=width)
        draft = Draft.chain((RIGHT,) * step.steps)
        for row, accepted in enumerate(correct):
            new = (*(RIGHT,) * accepted, OTHER)
            request = Request(row if tier.plans else 0, [UNKNOWN, *new], 1, SAMPLING, self.rng, self.rng)
            round = RequestRound(request, 1, decision, tier.barrier.policy.arms[decision.arm], draft)
            round.verdict, round.tokens = Verdict(tuple(range(accepted)), OTHER), new
            round.scores = TextScores(draft, new)
            round.score(cost, timed=isfinite(cost.target), overlap=False)
            request.disabled.add(DRAFTER)  # only now: no recorder is to ask for another draft
            records += [round.record] if round.record else []
        feedback, fault = tier.barrier.grade(records, self.graders)
        if not step.steps:
            feedback = [replace(known, windows=(*known.windows, UNTESTED)) for known in feedback]
        self._report(tier.barrier.learn(feedback) or fault)

    def _forget(self, step: Step) -> None:
        """Tell the policy that nothing will be known of its decision."""
        if step.tier.barrier is not None and step.decision is not None:
            self._report(step.tier.barrier.learn([Feedback(0, step.decision)]))

    def _report(self, fault: str) -> None:
        if fault and not self._is_faulty:
            self._is_faulty = True
            getLogger(SECTION).warning("%s; the initial length is used where it fails", fault)


def lengths_method(policy: str, steps: Sequence[int]) -> Method:
    """Return a policy whose arms are these lengths of SGLang's drafter.

    Raises:
        UserError: it chooses something else, or learns from more than outcomes.
    """
    spec = parse_policy(policy)
    known = entry("policies", spec.name).options
    if "lengths" in known:
        usual = {"arms": "lengths", "lengths": ",".join(map(str, steps))}
        if "per_query" in known:
            usual["per_query"] = "false"  # requests cannot be told apart
        spec = replace(spec, options=usual | dict(spec.options))
    chosen = method(spec, [DRAFTER])
    if isinstance(chosen.policy, AutoPolicy) and isinstance(chosen.recorder, AutoRecorder):
        arms = (Arm("none", 0), *(Arm(DRAFTER, n) for n in steps if n))
        auto = replace(chosen.policy, arms=arms, looks_up=(True,))  # known by its drafts alone
        return Method(auto, replace(chosen.recorder, policy=auto))
    if not isinstance(chosen.recorder, Bandit) or chosen.recorder.reads:
        raise UserError(
            f"policy {policy}: SGLang shows too little for it; name auto or, for example, ucbspec"
        )
    for arm in chosen.policy.arms:
        if arm.length not in steps or arm.width > 1 or arm.stop != NEVER:
            raise UserError(
                f"policy {policy}: its arm {arm.name} is no length of candidate_steps {list(steps)}"
            )
    return chosen


def replace_policy(
    controller: Any, worker: Any, policy: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Put a `LengthPolicy` in the place of SGLang's own: a hook before `AdaptiveController.__init__`.

    Returns its new arguments, or None if the file has no section "draftwise".

    Raises:
        UserError: an unknown option or a value of another type, or as `LengthPolicy`.
    """
    arguments = worker.server_args
    path = arguments.speculative_adaptive_config
    config = json.loads(Path(path).read_text()) if path else {}
    if SECTION not in config:
        return None
    options = config[SECTION]
    if not isinstance(options, dict) or not all(
        isinstance(value, OPTIONS.get(name, ())) for name, value in options.items()
    ):
        raise UserError(f"{SECTION}: {options!r} in {path}; give policy and state (texts) or seed (a number)")
    ours = LengthPolicy(
        {int(key): tier["candidate_steps"] for key, tier in config.items() if key.isdigit()},
        int(worker.speculative_num_steps),
        target=str(arguments.model_path),
        drafter=str(arguments.speculative_draft_model_path or arguments.speculative_algorithm),
        group=import_module(PARALLEL).get_tp_group() if arguments.tp_size > 1 else None,
        **options,
    )
    run = worker.forward_batch_generation

    def forward_batch_generation(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_extend():  # which the slot does not show
            ours.prefill()
        return run(batch, *args, **kwargs)

    worker.forward_batch_generation = forward_batch_generation
    getLogger(SECTION).info("Draftwise chooses among the lengths %s", ours.candidate_steps)
    return (controller, worker, ours), {}


def register() -> None:
    """The entry point of the group `sglang.srt.plugins`, which every process of SGLang calls."""
    registry = import_module("sglang.srt.plugins.hook_registry")
    registry.HookRegistry.register(CONTROLLER, replace_policy, registry.HookType.BEFORE)
