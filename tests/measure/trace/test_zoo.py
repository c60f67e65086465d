"""The bundled models: a replay of a few prompts is the live run, and a model's drafts are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwise import Decoder, Sampling
from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.data import spec_bench
from draftwise.measure.trace import Costs, Replay, Trace
from draftwise.measure.trace.drafts import READ_ALL
from draftwise.measure.trace.record import Prompt
from draftwise.measure.trace.state import ReplayState
from draftwise.models.weights import timing
from draftwise.policies.catalogue import method
from tests.measure.trace.sims import record_trace, seen

TOKENS, LENGTH = 24, 6
HEAD = "eagle:zoo:eagle"


@pytest.fixture(scope="module")
def models() -> Decoder:
    return Decoder.from_pretrained(
        "zoo:target", drafters=["zoo:general", "zoo:code", "suffix"], policy="none"
    )


@pytest.fixture(scope="module")
def trace(models: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(models, tmp_path_factory.mktemp("zoo"))


def recorded(models: Decoder, folder: Path) -> Trace:
    """Record two prompts with all drafters of a decoder."""
    prompts = [Prompt(str(q.question_id), q.category, models.encode(q.text)) for q in spec_bench()[40:45:4]]
    sampling = Sampling(max_new_tokens=TOKENS, eos=models.eos)
    target, team = models.loop.target, models.loop.pool.drafters
    return record_trace(target, team, prompts, folder, sampling, length=LENGTH, overlap=True)


@pytest.mark.parametrize("name", ["static-4", "ucb1", "metasd-ucb", "tapout-seq-ucb1?length=6", "hedgespec"])
def test_every_replayed_round_is_the_live_one(name: str, models: Decoder, trace: Trace) -> None:
    made = method(name, trace.drafters)
    live = Loop(models.loop.target, models.loop.pool.drafters, made.policy, made.recorder, seed=1)
    back = Replay(trace, method(name, trace.drafters), Costs(passes=(1.0,)), seed=1)
    sampling = Sampling(max_new_tokens=TOKENS, eos=models.eos)
    for one in trace:
        there = [seen(r) for r in live.run([one.prompt.tolist()], sampling)]
        assert [seen(r) for r in back.replay(ReplayState(one))] == there


def test_successors_are_what_the_model_would_draft(models: Decoder, trace: Trace) -> None:
    """Positions inside a confirmed draft were not drafted again; asked there, the model says the same."""
    one = next(iter(trace))
    drafter: Any = models.loop.pool.drafters["zoo:general"]
    answers, prompt = one.drafts["zoo:general"], one.prompt.tolist()
    sampling = Sampling(max_new_tokens=TOKENS)
    drafts = 0
    for at in range(one.committed - 1):
        request = Request(
            5, prompt + one.text[:at].tolist(), len(prompt), sampling, models.loop.rng, models.loop.rng
        )
        length = min(LENGTH, TOKENS - at - 1)
        (draft,) = drafter.draft([Job(request, length)])
        first, n = answers.start[at, length - 1], answers.count[at, length - 1]
        assert tuple(answers.tokens[first : first + n].tolist()) == draft.tokens
        drafts += len(draft.tokens)
    drafter.close(request)
    assert answers.tokens.size < drafts


def test_recording_frees_all_rows(models: Decoder, trace: Trace) -> None:
    target: Any = models.loop.target
    drafters: Any = models.loop.pool.drafters
    assert set(target.runner.request_ids) <= {-1} and set(drafters["zoo:code"].runner.request_ids) <= {-1}
    assert not drafters["zoo:general"].cached


def test_a_head_drafts_at_many_positions_as_it_does_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts, signals and overlaps of a batch are those of rounds of their own; nothing stays open."""
    monkeypatch.setattr(timing, "faster_in_half", lambda *_: False)  # which takes passes of few tokens only
    models = Decoder.from_pretrained("zoo:target", drafters=[HEAD], policy="none")
    target: Any = models.loop.target
    head: Any = models.loop.pool.drafters[HEAD]
    for one in recorded(models, tmp_path):
        drafts, prompt, text = one.drafts[HEAD], one.prompt.tolist(), one.text.tolist()
        signals, overlaps, tokens = list[list[float]](), list[float](), list[int]()
        request = Request(
            5, list(prompt), len(prompt), Sampling(max_new_tokens=TOKENS), models.loop.rng, models.loop.rng
        )
        target.open(request)
        for at in range(one.committed):
            job = Job(request, min(LENGTH, TOKENS - at - 1), READ_ALL, rows=True)
            (draft,) = head.draft([job]) if job.length > 0 else [Draft()]
            (scores,) = target.verify([(request, draft)])
            request.tokens.append(text[at])
            target.commit([(request, draft, Verdict((), text[at]))])
            assert drafts.start[at, -1] == len(tokens) and drafts.count[at, -1] == len(draft.tokens)
            assert drafts.hint[at] == (at > 0)
            tokens += draft.tokens
            signals += [[s.top1, s.top2, s.entropy, s.chosen] for s in draft.signals]
            overlaps += scores.overlaps() if draft.tokens else []
        target.close(request)
        head.close(request)
        assert drafts.tokens.tolist() == tokens and len(tokens) > one.committed
        assert drafts.signals.tolist() == [pytest.approx(row, abs=1e-3) for row in signals]
        assert drafts.overlap.tolist() == pytest.approx(overlaps, abs=1e-3)
    assert set(target.runner.request_ids) <= {-1} and set(head.runner.request_ids) <= {-1}
    assert not any(states._texts for states in target.recorded.values())
