"""A fault stays in the request that had it: whatever raises, every other text continues exactly."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Decoder, Output, Sampling
from draftwise.core import request_round as module
from draftwise.core.arms import Arm, Decision
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.outcomes import Feedback
from draftwise.core.request import Request
from draftwise.core.round import Round
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.errors import DraftwiseWarning, GenerationError, UserError
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.test_loop import P, V, counted, good, make
from tests.core.turns import Stateless, group_tokens, loop_with
from tests.tiny import VOCAB, model, own_text

PROMPTS = [[3, 5, 3, 5, 3], [7, 2, 9], [4, 4, 8, 1, 6, 2, 2], [11]]


class Breaks:
    """A processor that changes nothing, and raises when a text of `at` tokens is asked about."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, ids: Any, scores: Any) -> Any:
        if ids.shape[1] >= self.at:
            raise ArithmeticError(f"no more than {self.at}")
        return scores


def loops() -> Loop:
    """A small model, drafted for by itself and by a bad one."""
    made = model("llama", scale=5.0)
    team: dict[str, Any] = {
        "good": LMDrafter(model("llama", scale=5.0), VOCAB),
        "bad": LMDrafter(model("llama", seed=9), VOCAB),
        "ngram": NgramDrafter(),
    }
    return loop_with(HFTarget(made), team, "random")


def finish(loop: Loop, texts: dict[int, list[int]]) -> dict[int, Round]:
    failed = {}
    while loop.open:
        for round in loop.step():
            texts.setdefault(round.request, []).extend(round.tokens)
            if round.error is not None:
                failed[round.request] = round
    return failed


@pytest.mark.parametrize("how", ["processor", "criterion", "both"])
def test_what_raises_while_a_draft_is_accepted_ends_its_own_request_only(how: str) -> None:
    made, loop = model("llama", scale=5.0), loops()

    def stops(tokens: Sequence[int], start: int) -> int | None:
        if start <= 15 < len(tokens):  # the 16th is among the new ones
            raise ArithmeticError("no more than 15")
        return None

    kinds: dict[str, dict[str, Any]] = {
        "processor": {"processors": (Breaks(15),)},
        "criterion": {"ends": stops},
    }
    # Beside a processor a criterion is asked within the draft.
    faulty = kinds.get(how) or {"processors": (Breaks(99),), "ends": stops}
    requests = [
        loop.add(p, Sampling(max_new_tokens=40, **faulty if i == 2 else {})) for i, p in enumerate(PROMPTS)
    ]
    texts: dict[int, list[int]] = {}
    failed = finish(loop, texts)
    assert [*failed] == [requests[2].id] and "no more than 15" in failed[requests[2].id].fault
    assert isinstance(failed[2].error, ArithmeticError) and failed[2].finish_reason == "error"
    for i in (0, 1, 3):
        assert texts[i] == own_text(made, PROMPTS[i], 40)
    written = own_text(made, PROMPTS[2], 40)  # what it wrote before is its own, and no more than that
    assert texts[2] == written[: len(texts[2])] and PROMPTS[2] + texts[2] == requests[2].tokens
    assert not loop.open and not loop.faults["good"] + loop.faults["bad"]


@pytest.mark.parametrize("when", ["verify", "walk", "commit"])
@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_a_step_that_is_broken_off_leaves_every_text_exact(when: str, kind: type, monkeypatch: Any) -> None:
    """Whoever breaks in, wherever: what was verified and not committed counts as never read."""
    made, loop = model("llama", scale=5.0), loops()
    requests = [loop.add(p, Sampling(max_new_tokens=30)) for p in PROMPTS]
    texts: dict[int, list[int]] = {}
    for _ in range(3):
        for round in loop.step():
            texts.setdefault(round.request, []).extend(round.tokens)
    place: Any = {"verify": loop.target.runner, "commit": loop.target}.get(when, module)  # type: ignore[attr-defined]
    name = {"verify": "forward"}.get(when, when)
    inner, left = getattr(place, name), [1 if when == "commit" else 2]

    def breaks(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise kind("broken off")
        return inner(*args, **more)

    before = {r.id: list(r.tokens) for r in requests}
    with monkeypatch.context() as patch:
        patch.setattr(place, name, breaks)
        try:
            rounds = loop.step()
        except KeyboardInterrupt:
            rounds = []
    for round in rounds:
        texts.setdefault(round.request, []).extend(round.tokens)
    failed = {r.request for r in rounds if r.error is not None}
    if not rounds:  # an interrupt: some may have got their round, which nobody was told of
        texts = {r.id: r.tokens[r.prompt_length :] for r in requests}
        assert all(r.tokens[: len(before[r.id])] == before[r.id] for r in requests)
    finish(loop, texts)
    assert len(failed) < len(requests) or when == "commit"
    for request, prompt in zip(requests, PROMPTS, strict=True):
        own = own_text(made, prompt, 30)
        assert texts[request.id] == (own[: len(texts[request.id])] if request.id in failed else own)


def test_a_pass_that_fails_for_one_request_is_made_again_for_each() -> None:
    class Poisoned(SimTarget):
        def verify(self, batch: Sequence[tuple[Request, Draft]]) -> Any:
            if any(len(r.tokens) > 9 and r.id == 1 for r, _ in batch):
                raise RuntimeError("cannot read this\nat all")
            return super().verify(batch)

    loop = loop_with(Poisoned(markov(P), V), {"good": good()}, "static-3")
    start(loop, 3, tokens=20)
    texts: dict[int, list[int]] = {}
    failed = finish(loop, texts)
    assert [*failed] == [1] and failed[1].fault == "RuntimeError: cannot read this"
    assert texts[0] == counted(0, 20) and texts[2] == counted(2, 20) and len(texts[1]) >= 5


def test_a_commit_that_fails_leaves_its_texts_as_they_were() -> None:
    loop, _ = make({"good": good()}, [Arm("good", 3)])
    start(loop, 2, tokens=20)
    setattr(loop.target, "commit", fail)  # noqa: B010
    assert [(round.finish_reason, round.tokens) for round in loop.step()] == [("error", ())] * 2


def fail(*args: Any, **more: Any) -> Any:
    raise ZeroDivisionError("division by zero")


def start(loop: Loop, n: int, *, tokens: int) -> dict[int, list[int]]:
    """Begin `n` texts; gives what each will be, by counting."""
    for i in range(n):
        loop.add([i], Sampling(max_new_tokens=tokens))
    return {i: counted(i, tokens) for i in range(n)}


def with_policy(add: Any = None, **replaced: Any) -> Loop:
    """A loop whose policy has these attributes in place of its own, and its recorder the method `add`."""
    drafters: dict[str, Any] = {"good": good(), "bad": SimDrafter(markov(P[:, ::-1]), sampled=False)}
    chosen = method("ucb1", list(drafters))
    own = {name: getattr(chosen.policy, name) for name in ("arms", "choose", "learn", "close")}
    policy: Any = SimpleNamespace(reads_hints=False, **own | replaced)
    recorder: Any = SimpleNamespace(reads=frozenset(), add=add, close=lambda request: ())
    return Loop(SimTarget(markov(P), V), drafters, policy, recorder if add else chosen.recorder)


@pytest.mark.parametrize("when", ["choose", "plan", "learn", "close", "open", "add", "nothing", "arm"])
def test_a_policy_that_raises_costs_speed_and_no_text(when: str) -> None:
    replaced: dict[str, dict[str, Any]] = {
        "nothing": {"add": lambda *records: None},
        "arm": {"choose": lambda context, rng: SimpleNamespace(arm=99, stops=())},
    }
    loop, texts = with_policy(**replaced.get(when, {when: fail})), dict[int, list[int]]()
    with pytest.warns(match="division by zero") if when == "open" else nullcontext():
        wanted = start(loop, 3, tokens=20)
    with pytest.warns(match="division by zero") if when == "close" else nullcontext():
        assert not finish(loop, texts)
    assert texts == wanted
    assert loop.faults["policy"] >= 3 and not loop.faults["good"] + loop.faults["bad"]


@pytest.mark.parametrize("arm", [Arm("nobody", 3), None, "good", Arm("good", "3")])  # type: ignore[arg-type]
def test_an_arm_that_is_none_is_a_fault_of_the_policy(arm: Any) -> None:
    loop, texts = with_policy(arms=(arm,) * 2), dict[int, list[int]]()
    wanted = start(loop, 2, tokens=9)
    assert not finish(loop, texts) and texts == wanted
    assert loop.faults["policy"] and not loop.faults["good"]


def test_what_fails_for_one_request_keeps_no_other_from_being_learned() -> None:
    learned: list[int] = []

    def choose(context: Any, rng: Any) -> Any:
        return fail() if context.request == 0 else Decision(0)

    loop = with_policy(choose=choose, learn=lambda feedback: learned.append(feedback.request))
    start(loop, 3, tokens=20)
    assert [bool(round.fault) for round in loop.step()] == [True, False, False]
    assert sorted(learned) == [1, 2]


def test_what_a_policy_raises_while_it_plans_is_told_in_every_round() -> None:
    loop = with_policy(plan=fail)
    start(loop, 2, tokens=20)
    assert [round.fault for round in loop.step()] == ["policy: ZeroDivisionError: division by zero"] * 2


def test_what_a_recorder_raises_is_told_in_every_round_that_it_was_to_grade() -> None:
    loop = with_policy(add=fail)
    start(loop, 2, tokens=20)
    assert [round.fault for round in loop.step()] == ["policy: ZeroDivisionError: division by zero"] * 2


def test_all_feedback_of_a_text_that_ends_is_passed_on() -> None:
    """What is raised at one piece of it keeps no other decision in flight."""
    heard: list[float] = []

    def learn(feedback: Any) -> None:
        heard.append(feedback.decision.propensity)
        fail()

    loop = with_policy(learn=learn, add=lambda *records: ())
    late = [Feedback(0, Decision(0, propensity)) for propensity in (0.25, 0.75)]
    setattr(loop.recorder, "close", lambda request: iter(late))  # noqa: B010
    start(loop, 1, tokens=2)
    with pytest.warns(match="policy: ZeroDivisionError"):
        assert not finish(loop, {})
    assert heard == [0.25, 0.75] and loop.faults["policy"]


def test_what_an_interrupt_leaves_undone_is_no_longer_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[Feedback] = []
    loop = with_policy(learn=learned.append)
    start(loop, 2, tokens=20)
    loop.step()
    learned.clear()

    def interrupted(*batch: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.target, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    assert [(one.request, one.outcomes) for one in learned] == [(0, ()), (1, ())]


@pytest.mark.parametrize("when", ["open", "close"])
def test_a_warning_that_is_an_error_leaves_no_row_behind(when: str) -> None:
    loop, rows = with_policy(**{when: fail}), set[int]()
    setattr(loop.target, "open", lambda request: rows.add(request.id))  # noqa: B010
    setattr(loop.target, "close", lambda request: rows.remove(request.id))  # noqa: B010
    with warnings.catch_warnings(), pytest.raises(DraftwiseWarning, match="division by zero"):
        warnings.simplefilter("error")
        start(loop, 1, tokens=2)
        assert rows
        finish(loop, {})
    assert not rows and not loop.open


def test_log_probabilities_that_cannot_be_read_end_their_own_request_only() -> None:
    class Silent(SimTarget):
        def verify(self, batch: Sequence[tuple[Request, Draft]]) -> Any:
            made: list[Any] = super().verify(batch)
            for scores, (request, _) in zip(made, batch, strict=True):
                scores.logprob = fail if request.id == 1 else scores.logprob
            return made

    loop = loop_with(Silent(markov(P), V), {"good": good()}, "static-3")
    for i in range(3):
        loop.add([i], Sampling(max_new_tokens=20, logprobs=True))
    texts: dict[int, list[int]] = {}
    failed = finish(loop, texts)
    assert [*failed] == [1] and isinstance(failed[1].error, ZeroDivisionError) and failed[1].done
    assert texts == {0: counted(0, 20), 1: [], 2: counted(2, 20)}


@pytest.mark.parametrize(
    ("answer", "faults"),
    [(lambda drafts: dict(enumerate(drafts, 7)), 2), (lambda drafts: None, 2), (iter, 0)],
)
def test_an_answer_that_is_no_list_ends_no_text(answer: Any, faults: int) -> None:
    class Odd(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            made: list[Draft] = answer(super().draft(jobs))
            return made

    loop, _ = make({"odd": Odd(markov(P), sampled=False)}, method("static-3", ["odd"]).policy.arms)
    wanted, texts = start(loop, 2, tokens=9), dict[int, list[int]]()
    assert not finish(loop, texts) and texts == wanted
    assert loop.faults["odd"] == faults


SOUND: dict[str, Any] = {
    "bool": [True],
    "uint64": [np.uint64(1), np.uint64(2)],
    "int64": [np.int64(1)],
    "list": [1, 2],
}


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize("policy", ["static-3", "metasd-ucb?length=3", "hedgespec?length=3"])
def test_tokens_may_be_whole_numbers_of_any_type(kind: str, policy: str) -> None:
    """A tensor of a type that no target reads would be the end of the request."""
    tokens = SOUND[kind]

    class Odd(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            cut = [tokens[: job.length] for job in jobs]
            return [Draft(mine, tuple(range(-1, len(mine) - 1))) for mine in cut]

    made = model("llama", scale=5.0)
    loop = loop_with(HFTarget(made), {"odd": Odd(markov(np.eye(VOCAB)), sampled=False)}, policy)
    texts: dict[int, list[int]] = {}
    for prompt in PROMPTS:
        loop.add(prompt, Sampling(max_new_tokens=9))
    assert not finish(loop, texts) and not any(loop.faults.values())
    assert [*texts.values()] == [own_text(made, prompt, 9) for prompt in PROMPTS]


ROWS: dict[str, Any] = {
    "tensor": lambda n: torch.zeros((n, VOCAB)),
    "array": lambda n: np.zeros((n, VOCAB)),
    "list": lambda n: [torch.zeros(VOCAB)] * n,
    "arrays": lambda n: [np.zeros(VOCAB)] * n,
    "none": lambda n: [None] * n,
    "text": lambda n: "rows",
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_any_form_are_read_and_others_are_a_fault(rows: str) -> None:
    class Odd(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            lengths = [min(2, job.length) if job.request.id else 0 for job in jobs]
            return [Draft.chain([1, 2][:n], rows=ROWS[rows](n)) for n in lengths]

    made, odd = model("llama", scale=5.0), Odd(markov(np.eye(VOCAB)), sampled=False)
    loop = loop_with(HFTarget(made), {"odd": odd}, "metasd-ucb?length=2")
    rounds = list(loop.run(PROMPTS[:2], Sampling(max_new_tokens=9, logprobs=True), batch=2))
    assert group_tokens(rounds) == [own_text(made, p, 9) for p in PROMPTS[:2]]
    assert all(len(round.logprobs) == len(round.tokens) for round in rounds)
    assert loop.faults["odd"] == (rows in ("none", "text"))


class DraftsOne(Stateless):
    """Drafts one token, twice, for the first request."""

    def one(self, job: Job) -> Draft:
        return Draft.chain([17] * min(2, job.length)) if job.request.id == 0 else Draft()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 1}, {"processors": True}])
def test_a_drafted_token_that_the_target_reads_as_nan_costs_no_text(value: float, settings: Any) -> None:
    """Attention spreads NaN to the tokens before it, and later from where a shorter text holds it."""
    poisoned, sound = model("llama", scale=5.0), model("llama", scale=5.0)
    with torch.no_grad():
        poisoned.get_input_embeddings().weight[17] = value
    prompts = [PROMPTS[1], PROMPTS[0]]

    def write(loop: Loop) -> dict[int, list[int]]:
        own = [{"processors": (Counting(),)} if "processors" in settings else settings for _ in prompts]
        for prompt, more in zip(prompts, own, strict=True):
            loop.add(prompt, Sampling(max_new_tokens=9, **more))
        texts = {round.request: list(round.tokens) for round in loop.step()}
        if isinstance(loop.target, HFTarget):
            layers = loop.target.runner.cache.rows
            assert all(held.isfinite().all() for layer in layers for held in layer.tensors)
        assert not finish(loop, texts)
        return texts

    loop = loop_with(HFTarget(poisoned), {"one": DraftsOne()}, "static-2")
    wanted = write(loop_with(HFTarget(sound), {}, "none"))
    assert write(loop) == wanted and not any(17 in text for text in wanted.values())
    assert loop.faults["one"] == 1


@pytest.mark.parametrize("policy", ["static-2", "none"])
def test_a_target_whose_own_logits_are_nan_is_no_fault_of_a_drafter(policy: str) -> None:
    """A processor is asked about its prefix once all the same."""
    poisoned, processor = model("llama", scale=5.0), Counting()
    with torch.no_grad():
        poisoned.lm_head.weight[3] = torch.nan
    loop = loop_with(HFTarget(poisoned), {"one": DraftsOne()}, policy)
    loop.add([0], Sampling(max_new_tokens=9, processors=(processor,)))
    failed = finish(loop, {})
    assert "logits are NaN" in failed[0].fault and not loop.faults["one"]
    assert processor.calls == [[0]]


@pytest.mark.parametrize("row", [[float("nan")] * V, ["a"] * V, [None] * V, [float("inf")] * V])
def test_a_distribution_of_nonsense_ends_no_text(row: list[Any]) -> None:
    """It is read where a token is rejected; the round then keeps what was accepted before."""

    class Odd(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            return [Draft.chain([1, 2, 3], probs=[1.0] * 3, dist=[row] * 3) for _ in jobs]

    loop, _ = make({"odd": Odd(markov(P))}, method("static-3", ["odd"]).policy.arms)
    rounds = [*loop.run([[0], [1]], Sampling(max_new_tokens=40, temperature=1.0, seed=3), batch=2)]
    assert not any(round.error for round in rounds)
    assert [sum(len(r.tokens) for r in rounds if r.request == i) for i in (0, 1)] == [40, 40]
    faults = [r.request for r in rounds if r.fault.startswith("odd: ")]
    assert len(faults) == len(set(faults)), "it drafts no more for a text"


class Mute(ValueError):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("what", ["pass_kind", "branches", "parts", "error"])
def test_what_a_drafter_tells_of_itself_ends_no_text(what: str) -> None:
    class Odd(SimDrafter):
        def draft(self, jobs: Sequence[Job]) -> list[Draft]:
            if what == "error":
                raise Mute
            return super().draft(jobs)

    def fail(self: Any) -> Any:
        raise ArithmeticError("nothing to tell")

    if what != "error":
        setattr(Odd, what, property(fail))
    loop, _ = make({"odd": Odd(markov(P), sampled=False)}, method("static-3", ["odd"]).policy.arms)
    wanted, texts = start(loop, 2, tokens=9), dict[int, list[int]]()
    assert not finish(loop, texts) and texts == wanted


@pytest.mark.parametrize("policy", ["static-8", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_sees_no_token_beyond_the_end_of_its_text(policy: str, temperature: float) -> None:
    """Whoever ends it: it is asked once for each token, and the text is that of plain decoding."""
    made, seen = model("llama", scale=5.0), list[int]()

    class Once:
        def __call__(self, ids: Any, scores: Any) -> Any:
            seen.append(ids.shape[1])
            return scores

    def ends(tokens: Sequence[int], start: int) -> int | None:
        return next((k + 1 - start for k in range(start, len(tokens)) if k == 15), None)

    team: dict[str, Any] = {"good": LMDrafter(model("llama", scale=5.0), VOCAB)} if policy != "none" else {}
    loop = loop_with(HFTarget(made), team, policy)
    settings = Sampling(max_new_tokens=40, temperature=temperature, processors=(Once(),), ends=ends, seed=1)
    request = loop.add(PROMPTS[0], settings, deterministic=True)
    finish(loop, {})
    assert request.finish_reason == "stop" and len(request.tokens) == 16
    assert seen == [*range(len(PROMPTS[0]), 16)]
    if not temperature:
        assert request.tokens == PROMPTS[0] + own_text(made, PROMPTS[0], 16 - len(PROMPTS[0]))


def test_a_text_that_fails_has_all_that_plain_decoding_writes_before() -> None:
    made = model("llama", scale=5.0)
    for policy in ("none", "static-8"):
        drafter = LMDrafter(model("llama", scale=5.0), VOCAB)
        loop = loop_with(HFTarget(made), {} if policy == "none" else {"good": drafter}, policy)
        request = loop.add(PROMPTS[0], Sampling(max_new_tokens=40, processors=(Breaks(15),)))
        assert finish(loop, {}) and request.tokens == PROMPTS[0] + own_text(made, PROMPTS[0], 10)


@pytest.mark.parametrize("hint", [None, float("nan"), "high"])
def test_a_hint_that_is_no_number_is_a_fault(hint: Any) -> None:
    drafter = good()
    setattr(drafter, "hint", lambda request: hint)  # noqa: B010
    loop, spy = make({"odd": drafter}, method("static-3", ["odd"]).policy.arms)
    spy.reads_hints = True
    texts: dict[int, list[int]] = {}
    loop.add([0], Sampling(max_new_tokens=9))
    finish(loop, texts)
    assert texts == {0: counted(0, 9)} and loop.faults == {"odd": 1}


# -- the decoder -------------------------------------------------------------------------------------------


LONG = "Compose an engaging travel blog post about a recent trip to Hawaii."
ON: frozenset[int] = frozenset()  # no token ends the text


def test_a_processor_that_raises_reaches_who_gave_it(decoder: Decoder) -> None:
    at = len(decoder.encode(LONG)) + 20
    with pytest.raises(ArithmeticError, match=f"no more than {at}"):
        decoder.generate(LONG, max_new_tokens=60, eos=ON, processors=(Breaks(at),))
    whole = decoder.generate(LONG, max_new_tokens=60, eos=ON).text
    stream = decoder.stream(LONG, max_new_tokens=60, eos=ON, processors=(Breaks(at),))
    text = ""
    with pytest.raises(ArithmeticError):
        for piece in stream:
            text += piece.text
    assert text and whole.startswith(text) and decoder.last.finish_reason == "error"
    assert not decoder.loop.open


def test_the_other_texts_of_a_failing_batch_are_kept(decoder: Decoder) -> None:
    prompts = ["What is 3 + 4?", LONG, "Ein Hund"]
    at = len(decoder.encode(LONG)) + 10
    whole = [decoder.generate(p, max_new_tokens=20, eos=ON).token_ids for p in prompts]
    with pytest.raises(GenerationError, match=r"1 of 3 texts failed, the first .* 1: Arith") as said:
        decoder.generate_many(prompts, max_new_tokens=20, eos=ON, processors=(Breaks(at),), batch=2)
    kept = [o.token_ids for o in said.value.outputs]
    assert (kept[0], kept[2]) == (whole[0], whole[2]) and kept[1] == whole[1][: len(kept[1])]
    assert [o.finish_reason == "error" for o in said.value.outputs] == [False, True, False]
    assert isinstance(said.value.errors[1], ArithmeticError) and not decoder.loop.open
    copied = pickle.loads(pickle.dumps(said.value))  # as from a process of a pool
    assert str(copied) == str(said.value) and [o.token_ids for o in copied.outputs] == kept


def test_a_prompt_that_is_too_long_is_found_before_anything_is_decoded(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder.loop.target, "max_length", 2048)  # as with learned positions
    passes = decoder.loop.target.runner.seconds  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="window"):
        decoder.generate_many(["Ein Hund", "word " * 3000], max_new_tokens=20)
    assert decoder.loop.target.runner.seconds == passes and not decoder.loop.open  # type: ignore[attr-defined]


def test_a_text_that_is_closed_elsewhere_is_over(decoder: Decoder) -> None:
    whole = decoder.generate(LONG, max_new_tokens=60, eos=ON).token_ids

    def close(tokens: Sequence[int], start: int) -> None:
        if len(tokens) > len(decoder.encode(LONG)) + 20:
            for request in list(decoder.loop.open.values()):
                decoder.loop.close(request)

    cut = decoder.generate(LONG, max_new_tokens=60, eos=ON, ends=close)
    assert cut.token_ids == whole[: len(cut.token_ids)] and 20 < len(cut.token_ids) < 60
    assert cut.finish_reason == "" and not decoder.loop.open


def test_an_interrupt_in_its_last_round_leaves_no_text_open(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*batch: Any) -> None:
        raise KeyboardInterrupt

    stream = decoder.stream("Ein Hund", max_new_tokens=1, eos=ON)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(decoder.loop.target, "commit", interrupted)
        next(stream)
    assert not decoder.loop.open and not decoder.loop.target.runner.request_ids  # type: ignore[attr-defined]


def test_a_stream_that_nobody_reads_stands_still(decoder: Decoder) -> None:
    whole = decoder.generate("What is 3 + 4?", max_new_tokens=50)
    stream = decoder.stream("What is 3 + 4?", max_new_tokens=50)
    first = next(stream).text
    (idle,) = decoder.loop.open.values()
    before = len(idle.tokens)
    decoder.generate("Ein Hund", max_new_tokens=1)
    decoder.generate_many(["Ein Hund", "Zwei"], max_new_tokens=9, batch=1)
    assert len(idle.tokens) == before and not idle.done
    assert first + "".join(p.text for p in stream) == whole.text


# -- processors --------------------------------------------------------------------------------------------


class Counting:
    """Keeps what it has seen, and bans what it counted an even number of times: a state about one text."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, ids: Any, scores: Any) -> Any:
        self.calls.append(ids[0].tolist())
        scores[:, len(self.calls) % 7 :: 7] -= 3.0  # in place, as processors may
        return scores


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_text_has_a_processor_of_its_own(plain_model: Any, tokenizer: Any, temperature: float) -> None:
    decoder = Decoder.from_pretrained(plain_model, tokenizer=tokenizer, drafters=["ngram", "suffix"])
    prompts = ["What is 3 + 4?", "SELECT the names of", "Ein Hund läuft am Strand."]
    settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature, "seed": 5}
    alone = [decoder.generate(p, processors=(Counting(),), **settings).token_ids for p in prompts]
    mine = Counting()
    for given in (mine, Counting, lambda: Counting()):
        many = decoder.generate_many(prompts, processors=(given,), **settings)
        assert [o.token_ids for o in many] == alone
    assert not mine.calls  # copies were called, so that it is still as it was given
    samples = decoder.generate(prompts[0], n=3, processors=(mine,), **settings).samples
    assert samples[0].token_ids == alone[0]
    out = decoder.generate(prompts[0], processors=(mine,), **settings)
    assert out.token_ids == alone[0] and len(mine.calls) == len(out.token_ids)


def test_a_processor_writes_into_a_row_of_its_own() -> None:
    """In place, at a float32 model: log-probabilities are the raw ones all the same."""
    made = model("llama", dtype=torch.float32)
    drafter = LMDrafter(model("llama", dtype=torch.float32), VOCAB)
    loop = loop_with(HFTarget(made), {"good": drafter}, "static-4")

    def ban(ids: Any, scores: Any) -> Any:
        scores[:, 5:] = -float("inf")
        return scores

    rounds = list(loop.run([PROMPTS[0]], Sampling(max_new_tokens=12, processors=(ban,), logprobs=True)))
    text = [t for r in rounds for t in r.tokens]
    assert not any(r.error for r in rounds) and max(text) < 5
    with torch.inference_mode():
        rows = made(torch.tensor([PROMPTS[0] + text])).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(-1)
    said = [x for r in rounds for x in r.logprobs]
    assert said == pytest.approx([float(rows[i, t]) for i, t in enumerate(text)], abs=1e-4)


def test_what_cannot_be_copied_says_what_to_do(decoder: Decoder) -> None:
    from threading import Lock

    locked: Any = Counting()
    locked.lock = Lock()
    with pytest.raises(UserError, match=r"Counting cannot be copied .* give a function that makes one"):
        decoder.generate("Ein Hund", n=2, temperature=1.0, processors=(locked,), max_new_tokens=4)
    assert decoder.generate("Ein Hund", processors=(locked,), max_new_tokens=4).token_ids
    with pytest.raises(UserError, match="give a list of logits processors"):
        decoder.generate("Ein Hund", processors=(7,), max_new_tokens=4)
    held: Any = Counting()
    held.model = torch.nn.Linear(2, 2)
    held.model.lock = Lock()  # would fail if it were copied
    assert decoder.generate("Ein Hund", n=2, processors=(held,), max_new_tokens=4).token_ids


# -- threads -----------------------------------------------------------------------------------------------


def test_threads_write_what_each_would_alone(decoder: Decoder) -> None:
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"Translate German to English: Ein Hund läuft {i} Mal am Strand." for i in range(4)]
    alone = [decoder.generate(p, max_new_tokens=12).token_ids for p in prompts]

    def work(i: int) -> list[list[int]]:
        found = [decoder.generate(prompts[i], max_new_tokens=12).token_ids]
        found += [o.token_ids for o in decoder.generate_many([prompts[i]] * 2, max_new_tokens=12)]
        pieces = decoder.stream(prompts[i], max_new_tokens=12)
        next(pieces)
        if i % 2:
            pieces.close()  # a stream that is left in the middle
        else:
            text = decoder.generate(prompts[i], max_new_tokens=12).text
            assert text.endswith("".join(p.text for p in pieces))
        return found

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(work, range(4)))
    assert found == [[text] * 3 for text in alone]
    assert not decoder.loop.open and not decoder.loop.target.runner.request_ids  # type: ignore[attr-defined]


def test_a_text_is_its_own_whichever_is_the_newest(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have finished one since."""
    own = decoder.generate("Ein Hund", max_new_tokens=5).token_ids
    newest = property(lambda self: Output("another"), lambda self, output: None)
    monkeypatch.setattr(Decoder, "last", newest, raising=False)
    assert decoder.generate("Ein Hund", max_new_tokens=5).token_ids == own


def test_threads_take_turns() -> None:
    """Whoever gives the lock back does not get it before one that waits."""
    from threading import Thread
    from time import sleep

    from draftwise.core.batch import OneAtATime

    lock, order = OneAtATime(), list[str]()

    def wait() -> None:
        with lock, lock:
            order.append("waiting")

    other = Thread(target=wait)
    with lock:
        other.start()
        for _ in range(500):
            if lock._next.locked():
                break
            sleep(1e-3)
    with lock:
        order.append("again")
    other.join()
    assert order == ["waiting", "again"]


def test_a_processor_must_not_run_the_decoder_it_serves_and_may_close_a_stream(decoder: Decoder) -> None:
    def again(ids: Any, scores: Any) -> Any:
        decoder.generate("Ein Hund", max_new_tokens=2)
        return scores

    with pytest.raises(RuntimeError, match="a step within a step"):
        decoder.generate("Zwei Hunde", max_new_tokens=4, processors=(again,))
    other = decoder.stream(LONG, max_new_tokens=30)
    next(other)

    def close(ids: Any, scores: Any) -> Any:
        other.close()
        return scores

    out = decoder.generate(LONG, max_new_tokens=20, processors=(close,))
    assert out.token_ids == decoder.generate(LONG, max_new_tokens=20).token_ids
    assert not decoder.loop.open and not decoder.loop.target.runner.request_ids  # type: ignore[attr-defined]
