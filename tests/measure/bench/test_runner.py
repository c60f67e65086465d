from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from draftwise import UserError, registry
from draftwise.generation.text import decode
from draftwise.measure.bench.contender import Generation, Item, Peer, Text
from draftwise.measure.bench.journal import FINISHED, Journal, Unit, begun_with, usable
from draftwise.measure.bench.ours import Models, Policy
from draftwise.measure.bench.run import Progress, Runner, find_doubts
from draftwise.measure.results import describe_peer
from draftwise.policies.auto.policy import AutoPolicy
from draftwise.specs import DrafterSpec, parse_drafters
from draftwise.testing.target import SimTarget
from draftwise.writing import replacing, write_json
from tests.cli.conftest import LETTERS, Letters, after
from tests.core.asynchronous import ThreadTarget
from tests.forked import start

from .fake import Fake, play, prompts


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pairs(folder: Path) -> list[tuple[str, int]]:
    return [(row["method"], row["prompt"]) for row in lines(folder / "prompts.jsonl")]


# -- who runs when --------------------------------------------------------------------------------


def test_prompts_in_order_and_methods_take_turns_in_shuffled_order(tmp_path: Path) -> None:
    play(tmp_path / "one", [Fake(n) for n in "xyz"], prompts(20))
    done = pairs(tmp_path / "one")
    assert [prompt for _, prompt in done] == [i for i in range(20) for _ in "xyz"]
    turns = ["".join(m for m, p in done if p == i) for i in range(20)]
    assert {"".join(sorted(turn)) for turn in turns} == {"xyz"}
    assert len(set(turns)) > 3
    play(tmp_path / "two", [Fake(n) for n in "xyz"], prompts(20))
    assert pairs(tmp_path / "two") == done


def test_batches(tmp_path: Path) -> None:
    any_size, single = Fake("any"), Fake("single", most=1)
    play(tmp_path, [any_size, single], prompts(5), batches=(1, 2))
    assert [len(d) for d in any_size.decoded] == [1, 1, 1, 1, 1, 2, 2, 1]
    assert [len(d) for d in single.decoded] == [1, 1, 1, 1, 1]
    assert [0, 1] in any_size.warmed
    assert [0, 1] not in single.warmed
    rows = lines(tmp_path / "prompts.jsonl")
    assert len({row["key"] for row in rows}) == len(rows) == 15
    assert sum(row["load"] is not None for row in rows) == 13, "one sample a unit"


def test_progress_begins_before_the_first_text_and_time_left_is_of_each_methods_own(tmp_path: Path) -> None:
    everything: list[Progress] = []
    play(tmp_path, [Fake("x"), Fake("y")], prompts(4), tell=everything.append)
    assert [(at.category, at.method, at.done, at.total) for at in everything][:4] == [
        (phase, method, done, 2) for phase in ("compiling", "warming up") for done, method in enumerate("xy")
    ]
    told = [at for at in everything if at.category in "ab"]
    assert [at.done for at in told] == list(range(8))
    assert [at.seconds_left for at in told][:2] == [None, None]
    assert [at.seconds_left for at in told][2:] == [3.0, 2.5, 2.0, 1.5, 1.0, 0.5]


# -- what fails ------------------------------------------------------------------------------------


class Broken(Fake):
    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        if items[0].index == 2:
            raise RuntimeError("out of order")
        return Fake.decode(self, items, generation)


def test_a_peer_that_fails_is_left_out_and_named(tmp_path: Path) -> None:
    broken = Broken("peer")
    runner = play(tmp_path, [Fake("none"), broken], prompts(5))
    assert runner.failed == {"peer": "RuntimeError: out of order"}
    assert [m for m, _ in pairs(tmp_path)].count("none") == 5
    assert broken.decoded == [[0], [1]]


def test_our_own_failure_stops_the_run(tmp_path: Path) -> None:
    broken = Broken("ours")
    broken.engine = "draftwise"
    with pytest.raises(RuntimeError, match="out of order"):
        play(tmp_path, [Fake("none"), broken], prompts(5))


# -- peers -------------------------------------------------------------------------------------------


COPY = Item(-1, "copy", "copy", (1, 2, 1, 2))


class FakePeer(Fake, Peer):
    """Drafts three tokens a text, of which one is accepted, unless it is lazy."""

    drafts = True

    def __init__(self, name: str, *, lazy: bool = False, broken: bool = False) -> None:
        super().__init__(name)
        self.lazy, self.broken = lazy, broken

    @property
    def settings(self) -> dict[str, Any]:
        return {"threads": 2, "flash_attention": True}

    def prepare(self, groups: Sequence[Sequence[Item]], generation: Generation) -> None:
        super().prepare(groups, generation)
        if self.broken:
            raise RuntimeError("no compiler\nat all")

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        texts = super().decode(items, generation)
        return [Text(t.tokens, t.seconds, t.rounds) for t in texts] if self.lazy else texts


def run_peers(folder: Path, *contenders: Fake) -> Runner:
    return play(folder, contenders, prompts(3), batches=(1, 2), copy=COPY)


def test_each_peer_is_prepared_and_copies_a_text_of_which_it_keeps_nothing(tmp_path: Path) -> None:
    ours, live, lazy = Fake("none"), FakePeer("live"), FakePeer("lazy", lazy=True)
    records = run_peers(tmp_path, ours, live, lazy).peers()
    assert live.prepared == [[0], [1], [2], [0, 1], [2], [-1]], "all groups, before anything is timed"
    assert [record["method"] for record in records] == ["live", "lazy"]
    assert records[0]["settings"] == {"threads": 2, "flash_attention": True}
    assert records[0]["copied"] == {"tokens": 2, "drafted": 3, "accepted": 1}
    assert records[0]["doubts"] == []
    assert records[1]["doubts"] == ["it drafted no token of a text to copy"]
    assert live.decoded[0] == [-1] and live.count == 6, "the text to copy is forgotten"


def test_what_is_known_of_peers_survives_an_interruption(tmp_path: Path) -> None:
    first = run_peers(tmp_path, Fake("none"), FakePeer("p")).peers()
    again = FakePeer("p")
    assert run_peers(tmp_path, Fake("none"), again).peers() == first
    assert again.decoded == []


def test_a_peer_that_cannot_prepare_is_left_out(tmp_path: Path) -> None:
    runner = run_peers(tmp_path, Fake("none"), FakePeer("p", broken=True))
    assert runner.failed == {"p": "RuntimeError: no compiler"}
    assert runner.peers() == []


def test_doubts() -> None:
    copied = {"tokens": 9, "drafted": 4, "accepted": 0}
    record = {"settings": {"compiled while measured": 2}, "drafts": True, "copied": copied}
    assert list(find_doubts(record)) == [
        "it accepted no token of a text to copy",
        "2 more passes were compiled while it was measured: its times include that",
    ]
    assert list(find_doubts({"settings": {}, "drafts": False, "copied": copied | {"drafted": 0}})) == []


def test_records_in_words() -> None:
    record = {
        "settings": {"flash_attention": True, "freezing": False, "given": {"length": 3}},
        "prepared_seconds": 31.4,
        "drafts": True,
        "copied": {"tokens": 9, "drafted": 4, "accepted": 3},
    }
    assert describe_peer(record) == (
        "flash_attention on; freezing off; given length 3; compiled in 31 s; "
        "of a text to copy, 3 of 4 drafted tokens accepted"
    )
    quick = {"settings": {"threads": 1}, "prepared_seconds": 0.2, "drafts": False}
    assert describe_peer(quick) == "threads 1"


# -- our own policies ------------------------------------------------------------------------------


def letters(n: int) -> list[Item]:
    rng = random.Random(0)
    return [
        Item(i, i, "abc"[i % 3], tuple(rng.randrange(len(LETTERS) - 1) for _ in range(5))) for i in range(n)
    ]


def test_warming_up_teaches_nothing(models: Models) -> None:
    policy = Policy("ucb1", models)
    before = policy.memory()
    policy.warm(letters(2), Generation(12))
    assert policy.memory() == before
    policy.decode(letters(1), Generation(12))
    assert policy.memory() != before


def test_a_policy_that_drafts_trees_is_refused_before_a_target_without_them_has_run(models: Models) -> None:
    with pytest.raises(
        UserError, match="exact=True reads no trees of drafted tokens, and the policy draft-all"
    ):
        Policy("draft-all", replace(models, chains_only="exact=True"))
    Policy("draft-all", models)


def test_seconds_of_a_batch_are_shared_out(models: Models) -> None:
    begin = time.perf_counter()
    texts = Policy("static-3", models).decode(letters(4), Generation(12))
    wall = time.perf_counter() - begin
    assert 0 < sum(text.seconds for text in texts) <= wall
    assert [len(text.tokens) for text in texts] == [12] * 4
    assert all(sum(len(r.tokens) for r in text.log) == 12 for text in texts)
    assert {text.ttft_s for text in texts} == {None}


def test_the_time_to_the_first_tokens_is_that_of_the_first_round(models: Models) -> None:
    (text,) = Policy("static-3", models).decode(letters(1), Generation(12))
    assert len(text.log) > 1 and text.first_tokens == len(text.log[0].tokens)
    later = sum(round.seconds.total for round in text.log[1:])
    assert text.ttft_s and text.log[0].seconds.total <= text.ttft_s <= text.seconds - later


def test_rounds_that_a_policy_left_out_are_written_too(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch in which nothing pays, `auto` looks at some rounds only; no recorder hears of the others."""
    turns = count()
    monkeypatch.setattr(AutoPolicy, "rests", lambda policy, batch: next(turns) % 3 == 1)
    monkeypatch.setattr(AutoPolicy, "_reading", lambda *given: 0.0)  # passes of this world take microseconds
    policy = Policy("auto", models)
    texts = policy.decode(letters(4), Generation(24))
    assert all(len(text.signals) == len(text.log) == text.rounds for text in texts)
    assert any(round.drafted for text in texts for round in text.log)
    both = [Policy(name, models) for name in ("none", "auto")]
    play(tmp_path, both, letters(4), batches=(4,), tokenizer=models.tokenizer)


def test_sampled_texts_follow_the_prompts_seed(models: Models) -> None:
    items, generation = letters(3), Generation(20, 1.0, seed=5)
    together = Policy("static-2", models).decode(items, generation)
    alone = [Policy("static-2", models).decode([item], generation)[0] for item in items]
    assert [t.tokens for t in together] == [t.tokens for t in alone]


def test_a_failing_drafter_is_no_result(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jobs: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(models.shared["good"], "draft", fail)
    with pytest.raises(UserError, match=r"static-2 failed: good: RuntimeError: no memory"):
        Policy("static-2", models).decode(letters(1), Generation(12))


def test_rounds_tell_what_their_drafts_showed(tmp_path: Path, models: Models) -> None:
    policies = [Policy(name, models) for name in ("none", "svip?length=3", "metasd-ucb")]
    play(tmp_path, policies, letters(1), tokenizer=models.tokenizer)
    rounds = lines(tmp_path / "rounds.jsonl")
    shown = {m: [r for r in rounds if r["method"].startswith(m)] for m in ("none", "svip", "metasd")}
    assert all(len(r.get("entropy", [])) == r["drafted"] for r in shown["svip"])
    assert max(r["drafted"] for r in shown["svip"]) > 1
    assert not any("entropy" in r or "overlap" in r for r in shown["none"])
    assert any("overlap" in r for r in shown["metasd"]), "its reward is block divergence"
    assert all(0 <= r["overlap"] <= 1 for r in shown["metasd"] if "overlap" in r)


def test_a_head_is_loaded_once_and_each_method_learns_for_itself() -> None:
    name = "eagle:zoo:eagle"
    models: Any = Models.load("zoo:target", [name, "ngram"], compile="off")
    teams: list[Any] = [Policy("auto", models).loop.pool.drafters for _ in range(2)]
    one, other = teams
    assert one[name].runner is other[name].runner and one["ngram"] is not other["ngram"]
    assert one[name].drift is not other[name].drift
    texts = [Policy(policy, models).decode(letters(2), Generation(12)) for policy in ("none", "static-3")]
    assert [text.tokens for text in texts[0]] == [text.tokens for text in texts[1]]
    assert any(round.drafted for text in texts[1] for round in text.log)


def test_a_recorder_that_works_beside_the_next_pass_does_so_when_it_is_watched(models: Models) -> None:
    """Else a benchmark on a GPU would charge `auto` for work that takes no time in life."""
    policy = Policy("auto", replace(models, target=ThreadTarget(after(1), len(LETTERS))))
    texts = policy.decode(letters(2), Generation(24))
    assert policy.loop.barrier.is_late and policy.loop.barrier.late_recorder is not None
    assert all(len(text.signals) == text.rounds for text in texts)


class Stopping(Policy):
    """Is interrupted before its nth batch."""

    left = 1_000

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return Policy.decode(self, items, generation)


def test_a_resumed_run_is_round_by_round_the_uninterrupted_one(tmp_path: Path, models: Models) -> None:
    """Learners and their random numbers continue where they stood."""
    names = ["none", "metasd-exp3", "ucb1?arms=drafters*lengths&lengths=1,3&reward=simple", "random"]

    def run(folder: Path, stop: int) -> None:
        policies = [Stopping(name, models) for name in names]
        policies[1].left = stop
        play(folder, policies, letters(8), tokenizer=models.tokenizer, generation=Generation(30))

    run(tmp_path / "whole", 1_000)
    for stop in (2, 3, 1):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", stop)
    run(tmp_path / "parts", 1_000)

    def told(name: str) -> list[Any]:
        rows = lines(tmp_path / name / "rounds.jsonl")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert told("parts") == told("whole")
    assert len({row["arm"] for row in told("whole") if row["method"].startswith("ucb1?")}) == 4
    pieces = [lines(tmp_path / name / "pieces.jsonl") for name in ("parts", "whole")]
    assert pieces[0] == pieces[1]
    assert {row["prompt"] for row in pieces[0]} == {0, 1, 2}
    prompts = {item.index: decode(models.tokenizer, item.ids).strip() for item in letters(8)}
    assert all(row["prompt_text"] == prompts[row["prompt"]] != "" for row in pieces[0])
    assert {source for row in pieces[0] for _, source in row["pieces"]} == {"target", "good"}


class Paused(Policy):
    """Is stopped in the middle of its first batch, and goes on."""

    decoded = 0

    def decode(self, items: Sequence[Item], generation: Generation) -> list[Text]:
        texts = Policy.decode(self, items, generation)
        self.decoded += 1
        if self.decoded == 1:
            os.kill(os.getpid(), signal.SIGCONT)
            return [replace(text, seconds=text.seconds + 1_000.0) for text in texts]
        return texts


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="this system stops no process")
def test_a_text_over_which_the_run_was_stopped_is_written_again(tmp_path: Path) -> None:
    """With what the method knew before it: of its policy and in its lookups."""
    rounds = {}
    for kind in (Paused, Policy):
        models = remembering()
        policies = [kind(name, models) for name in ("none", "ucb1?arms=lengths&lengths=1,3,8&reward=simple")]
        play(
            tmp_path / kind.__name__,
            policies,
            letters(4),
            tokenizer=models.tokenizer,
            generation=Generation(30),
        )
        rows = lines(tmp_path / kind.__name__ / "rounds.jsonl")
        rounds[kind] = [(row["method"], row["prompt"], row["tokens"], row["accepted"]) for row in rows]
        assert all(row["seconds"] < 1_000.0 for row in lines(tmp_path / kind.__name__ / "prompts.jsonl"))
        assert [getattr(policy, "decoded", 5) for policy in policies] == [5, 5]
    assert rounds[Paused] == rounds[Policy]


def remembering() -> Models:
    """A lookup that drafts from earlier answers."""
    specs = parse_drafters(["suffix?history=1000"])
    target = SimTarget(after(1), len(LETTERS), max_length=100_000)

    def build(specs: Sequence[DrafterSpec]) -> dict[str, Any]:
        return {spec.text: registry.build("drafters", spec) for spec in specs}

    return Models(target, None, Letters(), frozenset(), specs, {}, "", build)


def test_no_method_drafts_from_its_answers_at_another_batch_size(tmp_path: Path) -> None:
    models, generation = remembering(), Generation(20)
    policies = [Policy("none", models), Policy("static-3", models)]
    play(tmp_path, policies, letters(4), batches=(1, 2), tokenizer=models.tokenizer, generation=generation)
    rows = [row for row in lines(tmp_path / "prompts.jsonl") if row["method"] == "static-3"]
    accepted = {(row["batch"], row["prompt"]): row["accepted"] for row in rows}
    assert accepted[1, 1] > 0, "the answer before this one was the same line"
    assert accepted[1, 0] == accepted[2, 0] == accepted[2, 1] == 0, "nothing had been answered before"


def test_a_resumed_run_has_the_answers_before_it_to_draft_from(tmp_path: Path) -> None:
    models, told, law = remembering(), list[Any](), Generation(20)
    for name, stops in (("whole", (1_000,)), ("parts", (3, 1_000))):
        for stop in stops:
            policies = [Stopping("none", models), Stopping("static-3", models)]
            policies[1].left = stop
            with pytest.raises(KeyboardInterrupt) if stop < 1_000 else nullcontext():
                play(tmp_path / name, policies, letters(6), tokenizer=models.tokenizer, generation=law)
        rounds = lines(tmp_path / name / "rounds.jsonl")
        told.append([(row["method"], row["prompt"], row["drafted"]) for row in rounds])
    assert told[0] == told[1] and any(drafted for _, prompt, drafted in told[0] if prompt > 2)


def test_plain_decoding_shows_its_texts_to_no_drafter(models: Models) -> None:
    assert not Policy("none", models).loop.pool.drafters
    assert set(Policy("static-2", models).loop.pool.drafters) == {"good", "bad"}


# -- killed ------------------------------------------------------------------------------------------


def finished(folder: Path) -> int:
    """The number of whole lines of prompts."""
    path = folder / "prompts.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_killed_three_times_it_ends_with_the_same_set_of_results(tmp_path: Path) -> None:
    when, before = random.Random(7), 0
    slow = [Fake(name, seconds=0.01) for name in ("none", "a", "b", "c")]
    for _ in range(3):
        child, had = start(play, tmp_path, slow, prompts(60)), before
        while (before := finished(tmp_path)) == had:
            time.sleep(0.01)  # on a busy machine the child may have had no turn yet
        time.sleep(when.uniform(0.0, 0.05))
        child.kill()
        child.join()
        assert child.exitcode == -9, "it was killed, not done"
        before = finished(tmp_path)
    assert 0 < before < 240, "killed half-way"
    contenders = [Fake(name) for name in ("none", "a", "b", "c")]
    play(tmp_path, contenders, prompts(60))
    done = pairs(tmp_path)
    assert len(done) == len(set(done)) == 240
    assert sum(len(c.decoded) for c in contenders) <= 240 - before + 1, "what was finished is not run again"
    shas = {(r["method"], r["prompt"]): r["text_sha"] for r in lines(tmp_path / "prompts.jsonl")}
    play(tmp_path / "whole", [Fake(name) for name in ("none", "a", "b", "c")], prompts(60))
    whole = lines(tmp_path / "whole" / "prompts.jsonl")
    assert {(r["method"], r["prompt"]): r["text_sha"] for r in whole} == shas, "and each counted once"


# -- the journal ---------------------------------------------------------------------------------------


WHOLE: dict[str, Any] = dict.fromkeys(FINISHED, 0)
"""A line of `prompts.jsonl` with all its fields."""


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """Ten units of one method in batches of two, with rounds and pieces."""
    journal = Journal(tmp_path, {"seed": 1, "limit": 20}, load=0.0)
    for at in range(10):
        unit = Unit("m", 2, (2 * at, 2 * at + 1))
        heads = [{"method": "m", "batch": 2, "prompt": p} for p in unit.prompts]
        rows = [WHOLE | {"key": key, **head} for key, head in zip(unit.keys, heads, strict=True)]
        journal.finish(unit, rows, heads, heads, {"count": at})
    journal.close()
    return tmp_path


def resume(folder: Path, **settings: Any) -> Journal:
    journal = Journal(folder, {"seed": 1, "limit": 20} | settings, load=0.0)
    journal.resume([Unit("m", 2, (2 * at, 2 * at + 1)) for at in range(20)])
    journal.close()
    return journal


def test_what_belongs_to_no_finished_unit_is_dropped(half: Path) -> None:
    text = (half / "prompts.jsonl").read_text().splitlines(keepends=True)
    (half / "prompts.jsonl").write_text("".join(text[:19]) + text[19][:9])
    with open(half / "rounds.jsonl", "a") as file:
        file.write('{"method": "m", "ba')
    journal = resume(half)
    assert len(journal.rows()) == 18, "half a batch is not finished"
    for name in ("prompts.jsonl", "rounds.jsonl", "pieces.jsonl"):
        assert [row["prompt"] for row in lines(half / name)] == list(range(18))


def test_memory_is_that_of_the_last_finished_unit(half: Path) -> None:
    journal = resume(half)
    assert journal.memory("m") == {"count": 9}
    assert journal.memory("other") is None
    (state,) = (half / "state").iterdir()
    state.rename(state.with_suffix(".next"))  # killed between the line and the move
    assert resume(half).memory("m") == {"count": 9}
    text = (half / "prompts.jsonl").read_text().splitlines(keepends=True)
    (half / "prompts.jsonl").write_text("".join(text[:18]))
    with pytest.raises(UserError, match="does not fit the last line of m"):
        resume(half).memory("m")


def test_a_peer_that_keeps_nothing_goes_on_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"seed": 1, "limit": 20}, load=0.0)
    unit = Unit("m", 2, (0, 1))
    rows = [WHOLE | {"key": key, "method": "m", "batch": 2, "prompt": i} for i, key in enumerate(unit.keys)]
    journal.finish(unit, rows, [], [], None)
    journal.close()
    again = resume(tmp_path)
    assert again.finished(unit) and again.memory("m") is None


def test_other_settings_are_refused_by_name(half: Path) -> None:
    with pytest.raises(
        UserError, match=r"holds a run with limit 20, now 30: continue with the same settings"
    ):
        resume(half, limit=30)
    with pytest.raises(UserError, match="with limit 20, now 30"):
        usable(half, {"limit": 30})  # before anything is loaded
    assert len(resume(half).rows()) == 20, "and nothing is lost"


@pytest.mark.parametrize("foreign", ["{", "{}", "[1]", "7", '{"prompt": 1, "category": "x"}', '{"key": []}'])
def test_a_line_of_something_else_is_named_before_anything_is_loaded(half: Path, foreign: str) -> None:
    with open(half / "prompts.jsonl", "a") as file:
        file.write(f"{foreign}\n")
    for use in (resume, partial(usable, settings={})):
        with pytest.raises(UserError, match=r"prompts.jsonl, line 21: no.*; fix it or name another folder"):
            use(half)


def test_a_file_in_place_of_a_folder_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "x" / "y"):
        with pytest.raises(UserError, match=r"cannot write to .*file is no folder; choose another --out"):
            usable(out, {})
    usable(tmp_path / "new" / "folder", {})
    assert not (tmp_path / "new").exists(), "a check makes nothing"


def test_two_threads_that_write_one_file_leave_one_of_two_whole_ones(tmp_path: Path) -> None:
    path, both = tmp_path / "results.json", Barrier(2)

    def write(text: str) -> None:
        with replacing(path) as part:
            part.write_text(text)
            both.wait()
            assert part.read_text() == text

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(write, ("first", "second"))] == [None, None]
    assert path.read_text() in ("first", "second") and [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    with pytest.raises(OSError, match=r"No space left on device: .*results.json'"), replacing(path) as part:
        part.write_text("half")
        raise OSError(28, "No space left on device")
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_run_that_is_resumed_has_as_many_threads_as_before(tmp_path: Path) -> None:
    assert begun_with(tmp_path) == 0
    Journal(tmp_path, {"threads": 3}, load=0.0).close()
    assert begun_with(tmp_path) == 3


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Journal(tmp_path, {}, load=0.0)
    with pytest.raises(UserError, match="another run writes to"):
        Journal(tmp_path, {}, load=0.0)
    first.close()
    Journal(tmp_path, {}, load=0.0).close()


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to .*file"):
        Journal(tmp_path / "file", {}, load=0.0)
    (tmp_path / "file").unlink()
    (tmp_path / "results.json").touch()
    with pytest.raises(UserError, match=r"holds results\.json, and no run"):
        Journal(tmp_path, {}, load=0.0)
    (tmp_path / "results.json").unlink()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run.json cannot be read"):
        Journal(tmp_path, {}, load=0.0)
