"""Draftwise's options in vLLM's words, and the proposer without vLLM around it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import draftwise
from draftwise.core.outcomes import Feedback
from draftwise.errors import DraftwiseWarning, UserError
from draftwise.hosts import vllm
from draftwise.hosts.vllm import report
from draftwise.hosts.vllm.options import Options

from .engine import VOCAB, Engine, arrays, circle, configuration, step
from .engine import Job as Served


def build(told: dict[str, Any], **options: Any) -> Any:
    """As vLLM does it: the class by the name after the last dot, called with the configuration."""
    module, _, name = told["model"].rpartition(".")
    assert module == "draftwise.hosts.vllm"
    proposer = getattr(vllm, name)(configuration(most=told["num_speculative_tokens"], **options))
    proposer.load_model(SimpleNamespace(parameters=lambda: iter([torch.zeros(1)])))
    return proposer


def ask(proposer: Any, jobs: list[Served], sampled: list[list[int]]) -> list[list[int]]:
    """As vLLM's model runner does it, which says first what it has read."""
    proposer.listen(step(jobs))
    drafts: list[list[int]] = proposer.propose(sampled, *arrays(jobs))
    return drafts


def test_the_configuration_is_json_and_says_everything() -> None:
    drafters = ["ngram?min=2&max=3", "retrieval:/a/b.store", "zoo:general"]
    told = draftwise.vllm_config(
        drafters=drafters, policy="ucb1?length=7&strength=0.5", state="s.json", seed=3
    )
    assert json.loads(json.dumps(told)) == told
    assert told["method"] == "custom_class" and told["num_speculative_tokens"] == 7
    module, _, name = told["model"].rpartition(".")
    assert module == "draftwise.hosts.vllm"
    assert Options.parse(name) == Options(
        drafters=tuple(drafters),
        policy="ucb1?length=7&strength=0.5",
        state=str(Path("s.json").resolve()),
        seed=3,
    )


def test_the_longest_draft_is_the_policys() -> None:
    assert draftwise.vllm_config(drafters=["ngram"], policy="static-4")["num_speculative_tokens"] == 4
    assert draftwise.vllm_config()["num_speculative_tokens"] == 16  # auto


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "nonsense"}, "unknown policy"),
        ({"policy": "none"}, "never drafts"),
        ({"policy": len}, "workers load it by name"),
        ({"drafters": ["a,b"]}, "without comma"),
        ({"drafters": [object()]}, "by name"),
        ({"seed": 1.5}, "seed=1.5: give a whole number"),
        ({"policy": "draft-all", "drafters": ["ngram", "suffix"]}, "trees"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        draftwise.vllm_config(**options)


def test_a_drafter_that_is_part_of_the_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Head:
        def __init__(self, path: str, target: Any) -> None: ...

    monkeypatch.setattr("draftwise.registry.names", lambda group: ["head"])
    monkeypatch.setattr("draftwise.registry.load", lambda group, name: Head)
    with pytest.raises(UserError, match="hidden states"):
        _ = Options(drafters=("head:/a/b",)).longest


@pytest.mark.parametrize("query", ["policy", "speed=9", "seed=x"])
def test_options_by_hand_are_checked(query: str) -> None:
    with pytest.raises(UserError, match=query.partition("=")[0]):
        getattr(vllm, f"Proposer?{query}")


def test_too_few_speculative_tokens_are_refused() -> None:
    told = draftwise.vllm_config(drafters=["ngram"], policy="static-4") | {"num_speculative_tokens": 3}
    with pytest.raises(UserError, match="up to 4"):
        build(told)


def test_requests_are_served_to_their_ends() -> None:
    proposer = build(draftwise.vllm_config(drafters=["ngram", "zoo:general"], policy="random"))
    engine = Engine(circle, seats=3, seed=4)

    def check(jobs: list[Served], sampled: list[list[int]]) -> list[list[int]]:
        drafts = ask(proposer, jobs, sampled)
        told = sorted(r.tokens for r in proposer.follower.open.values())
        assert told == sorted(job.text for job in jobs if len(job.tokens) < job.budget)
        return drafts

    for k in range(9):
        engine.add(f"{k}", [10 + k % 3, 11, 12, 13, 14 + k], 30 + k)
    while engine.waiting or engine.running:
        engine.step(check)
    totals = proposer.follower.totals()
    assert not proposer.follower.open and totals["num_rounds"] > 50
    assert totals["drafters"]["ngram"]["num_accepted_tokens"] > 20
    assert not proposer.follower.pool.drafters["zoo:general"].cached


def test_a_drafted_token_of_raw_probability_a_quarter_counts_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MetaSD's block divergence, from what vLLM's rejection sampler is given to what the policy learns."""
    proposer = build(draftwise.vllm_config(drafters=["ngram", "suffix"], policy="metasd-ucb?length=3"))
    learnt: list[Feedback] = []
    monkeypatch.setattr(type(proposer.follower.policy), "learn", lambda self, f: learnt.append(f))
    sampler = Sampler()
    served = Served("a", [*range(10, 22)] * 2, 40)

    def read(new: list[int], verified: list[int], chance: float = 0.0) -> list[int]:
        """A pass over these drafted tokens, each of this raw probability, after which `new` were written."""
        if verified:
            distribution = torch.full((len(verified) + 1, VOCAB), math.log((1 - chance) / (VOCAB - 1)))
            distribution[range(len(verified)), verified] = math.log(chance)
            told = SimpleNamespace(
                target_logits_indices=torch.arange(len(verified)),
                draft_token_ids=torch.tensor(verified),
                num_draft_tokens=[len(verified)],
            )
            sampler(told, None, distribution)
        served.tokens += new
        served.draft = verified
        proposer.listen(step([served], rejection_sampler=sampler))
        (draft,) = proposer.propose([new], *arrays([served]))
        return list(draft)

    draft = read([10], [])
    assert draft == [11, 12, 13]
    draft = read([11, 99], draft, 0.25)
    ((outcome,),) = [f.outcomes for f in learnt]
    assert outcome.overlaps == pytest.approx([0.25] * 3, abs=1e-5) and outcome.accepted == 1
    assert outcome.reward == pytest.approx(0.25, abs=1e-5), "not 1/3, which is accepted over drafted"
    read([98], [])
    assert not any(one.overlaps for f in learnt[1:] for one in f.outcomes), "no draft, no overlap"


class Sampler(torch.nn.Module):
    """Where vLLM's rejection sampler is called."""

    def forward(self, *given: Any) -> None: ...


def test_a_policy_is_checked_as_for_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was trained for other drafters is used with a warning, for another tokenizer refused."""
    with pytest.warns(DraftwiseWarning, match="trained for another drafter than zoo:sql"):
        build(draftwise.vllm_config(drafters=["zoo:sql"], policy="disco"))
    specialists = [f"zoo:{name}" for name in ("code", "math", "qa", "sql", "summarization", "translation")]
    routed = draftwise.vllm_config(drafters=specialists, policy="router:zoo:router")
    build(routed)
    monkeypatch.setattr("draftwise.build.tokenizer_fingerprint", lambda vocabulary: "another")
    with pytest.raises(UserError, match="tokenizer"):
        build(routed)


def write_text(proposer: Any) -> None:
    """One text from its beginning to its end."""
    engine = Engine(circle)
    engine.add("a", [10, 11], 60)
    while engine.waiting or engine.running:
        engine.step(lambda jobs, sampled: ask(proposer, jobs, sampled))


def test_ranks_report_apart_and_learn_together(tmp_path: Path) -> None:
    told = draftwise.vllm_config(drafters=["ngram", "suffix"], policy="ucb1", state=tmp_path / "state.json")
    ranks = [build(told, rank=rank) for rank in range(2)]
    for rank in ranks:
        write_text(rank)
    assert len({rank._reporter.path for rank in ranks}) == 2
    apart = [sum(rank.follower.policy.shared.pulls) for rank in ranks]
    for rank in (*ranks, ranks[0]):
        rank._reporter._saved = -1e9
        rank._reporter.tick()
        rank._reporter.saver.wait()
    assert [sum(rank.follower.policy.shared.pulls) for rank in ranks] == [sum(apart)] * 2
    for rank in ranks:
        rank._reporter.end()


def test_the_end_of_the_last_text_is_saved_soon_and_other_saves_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a later step if a save is under way; while texts are open, only twice a minute."""
    told = draftwise.vllm_config(drafters=["ngram", "suffix"], policy="ucb1", state=tmp_path / "state.json")
    reporter = build(told)._reporter
    texts: list[int] = [1]
    monkeypatch.setattr(reporter, "follower", SimpleNamespace(open=texts, totals=dict))
    begun: list[bool] = []
    answers = iter([False, True, True])  # the first time a save is under way

    def start() -> bool:
        begun.append(next(answers))
        return begun[-1]

    monkeypatch.setattr(reporter.saver, "start", start)
    reporter._saved = monotonic() - 2 * report.REPORT_SECONDS
    reporter.tick()
    assert not begun, "a text is open"
    texts.clear()
    reporter.tick()
    reporter.tick()
    assert begun == [False, True]
    reporter._saved = monotonic() - 2 * report.REPORT_SECONDS
    reporter.tick()
    assert begun == [False, True], "nothing has ended since"
    reporter._saved = monotonic() - 2 * report.SAVE_SECONDS
    reporter.tick()
    assert begun == [False, True, True]


def test_what_was_learnt_is_saved_and_found_again(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    told = draftwise.vllm_config(drafters=["ngram", "suffix"], policy="ucb1", state=file)
    first = build(told)
    write_text(first)
    report = first._reporter.path
    assert json.loads(report.read_text()) == first.follower.totals()
    shutil.rmtree(report.parent)  # as a cleaner of temporary files does
    first._reporter.report()
    assert json.loads(report.read_text()) == first.follower.totals()
    shutil.rmtree(report.parent)
    report.parent.write_text("")  # no folder can be made there
    first._reporter.report()
    report.parent.unlink()
    first._reporter.report()
    first._reporter.end()
    assert not report.exists()
    second = build(told)
    assert second.follower.policy.shared == first.follower.policy.shared
    assert second.follower.policy.shared != second.follower.policy.new_learner(2)
