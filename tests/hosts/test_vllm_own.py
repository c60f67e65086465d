"""vLLM's own proposers as drafters: their names, and a model that drafts beside a stub of vLLM's."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import draftwise
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.hosts import vllm
from draftwise.hosts.vllm import vllm_arguments
from draftwise.hosts.vllm.drafters import FilledBlocks, NgramDrafter, ReadState
from draftwise.hosts.vllm.options import EngineDrafter, Options
from draftwise.hosts.vllm.proposer import Proposer
from draftwise.hosts.vllm.runner import Step
from draftwise.models.load import resolve

from .engine import VOCAB, Engine, Job, circle, configuration, step

SIZE, LONGEST = 4, 5


# -- names -----------------------------------------------------------------------------------------------


def test_arguments_load_the_model_and_say_who_drafts() -> None:
    arguments = vllm_arguments(
        drafters=["vllm:draft_model:zoo:general", "vllm:ngram?min=2"], policy="ucb1?length=7&strength=0.5"
    )
    config = arguments["speculative_config"]
    assert config["method"] == "draft_model" and config["model"] == resolve("zoo:general")
    assert config["num_speculative_tokens"] == 7 and config["draft_sample_method"] == "probabilistic"
    assert arguments["async_scheduling"] is False
    module, _, name = arguments["worker_extension_cls"].rpartition(".")
    assert module == "draftwise.hosts.vllm" and name.startswith("Extension?")
    assert Options.parse(name) == Options(
        drafters=("vllm:draft_model:zoo:general", "vllm:ngram?min=2"), policy="ucb1?length=7&strength=0.5"
    )


def test_arguments_of_a_head_in_the_target_and_of_none() -> None:
    config = vllm_arguments(drafters="vllm:mtp?sample=false,ngram")["speculative_config"]
    assert config == {"method": "mtp", "num_speculative_tokens": 16}
    drafters = ["vllm:ngram", "suffix"]
    expected = {"speculative_config": draftwise.vllm_config(drafters=drafters)}
    assert vllm_arguments(drafters=drafters) == expected
    assert expected["speculative_config"]["method"] == "custom_class"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vllm:medusa:/a", "vllm:eagle3:PATH"),
        ("vllm:eagle3", "vllm:eagle3:PATH"),
        ("vllm:ngram:/a", "no model of its own"),
        ("vllm:mtp:/a", "no model of its own"),
        ("vllm:ngram?sample=true", "choose from min, max"),
        ("vllm:ngram?min=0", "min=0"),
        ("vllm:ngram?min=4&max=3", "min <= max"),
        ("vllm:eagle:/a?min=3", "choose from sample"),
        ("vllm:eagle:/a?sample=perhaps", "sample=perhaps"),
    ],
)
def test_names_that_mean_nothing_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        vllm_arguments(drafters=[name])
    assert "\n" not in str(error.value) and name.partition("?")[0] in str(error.value)


def test_an_engine_loads_one_model() -> None:
    with pytest.raises(UserError, match="one model"):
        vllm_arguments(drafters=["vllm:eagle:/a", "vllm:draft_model:/b"])
    with pytest.raises(UserError, match="vllm_arguments"):
        draftwise.vllm_config(drafters=["vllm:eagle:/a", "ngram"])
    with pytest.raises(UserError, match="proposers of its own"):
        getattr(vllm, "Extension?drafters=vllm:eagle:/a")  # no vLLM here


# -- what is read ----------------------------------------------------------------------------------------


def test_a_request_is_read_where_it_was_not() -> None:
    state = ReadState()
    state.advance(0, 5, torch.arange(5.0)[:, None])
    state.advance(5, 2, torch.arange(5.0, 7.0)[:, None])
    assert state.span(with_states=True) == (0, 7) and state.waiting == 7
    assert torch.cat(state.states(3, 6)).flatten().tolist() == [3.0, 4.0, 5.0]
    state.set_read(7)
    assert state.span(with_states=True) == (6, 7) and state.waiting == 0
    assert torch.cat(state.states(6, 7)).flatten().tolist() == [6.0], "the last one is read again by a draft"
    state.advance(7, 1, torch.full((1, 1), 7.0))
    assert state.span(with_states=True) == (7, 8)
    state.advance(2, 3, torch.arange(2.0, 5.0)[:, None])  # preempted, and resumed from a cached prefix
    assert state.span(with_states=True) == (2, 5)


def test_a_hole_whose_states_are_gone_stays_and_one_of_the_text_is_read() -> None:
    state = ReadState()
    state.advance(0, 5, torch.zeros(5, 1))
    state.advance(8, 2, torch.zeros(2, 1))
    assert state.span(with_states=True) == (8, 10)
    text = ReadState()
    text.advance(0, 5)
    text.advance(8, 2)
    assert text.span(with_states=False) == (0, 10)


def test_blocks_are_filled_as_far_as_they_were_read() -> None:
    blocks = FilledBlocks(4)
    table = [5, 2, 7]
    blocks.write(table, 0, 10, read=False)
    assert blocks.prefix(table, 10) == 0
    blocks.write(table, 0, 6, read=True)
    assert blocks.prefix(table, 10) == 6 and blocks.prefix(table, 5) == 5
    blocks.write(table, 8, 10, read=True)
    assert blocks.prefix(table, 10) == 6, "a hole"
    blocks.write(table, 6, 10, read=True)
    assert blocks.prefix(table, 10) == 10
    blocks.write([2], 0, 3, read=False)  # another request has got the block
    assert blocks.prefix(table, 10) == 4


# -- a model beside a stub of vLLM -----------------------------------------------------------------------


@dataclass
class Metadata:
    """The fields of vLLM's `CommonAttentionMetadata` that are read here."""

    query_start_loc_cpu: Any = None
    seq_lens: Any = None
    block_table_tensor: Any = None
    slot_mapping: Any = None


class Model(torch.nn.Module):
    """Its states are the tokens that follow, of which its logits are certain."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(states[:, 0].long(), VOCAB).float()


class Own:
    """vLLM's proposer: drafts the next tokens of the circle, from nothing but what its KV cache holds.

    A slot holds the position, the token and, for a head, the target's state there. A position that was not
    read, or that another request has written, ends in a wrong draft, which `holes` counts.
    """

    kv_cache_gid, block_size, max_num_tokens, device = 0, SIZE, 64, torch.device("cpu")

    def __init__(self, *, head: bool) -> None:
        self.pass_hidden_states_to_model, self.model = head, Model()
        self.cache: dict[int, tuple[int, int]] = {}
        self.holes = self.calls = 0

    def propose(self, *, num_speculative_tokens: int, **given: Any) -> torch.Tensor:
        self.calls += 1
        metadata, head = given["common_attn_metadata"], self.pass_hidden_states_to_model
        starts, tokens = metadata.query_start_loc_cpu.tolist(), given["target_token_ids"].tolist()
        positions, states = given["target_positions"].tolist(), given["target_hidden_states"]
        drafts, outputs = [], list[int]()
        for at, (first, last) in enumerate(pairwise(starts)):
            nexts = [*tokens[first + 1 : last], int(given["next_token_ids"][at])]
            for k in range(first, last):
                read = nexts[k - first] if head else tokens[k]
                assert not head or int(states[k]) == tokens[k], "a state of another token"
                self.cache[int(metadata.slot_mapping[k])] = (positions[k], read)
                outputs.append(after(read))
            if not head:
                outputs.append(after(nexts[-1]))
            text = self._cached(metadata.block_table_tensor[at].tolist(), int(metadata.seq_lens[at]))
            last_token = nexts[-1]
            if not head:
                text.append(last_token)
            drafts.append([0] * num_speculative_tokens)
            if any(b != after(a) for a, b in pairwise(text)):
                self.holes += 1
                continue
            for k in range(num_speculative_tokens):
                last_token = drafts[-1][k] = after(last_token)
        self.model(torch.tensor(outputs)[:, None])
        return torch.tensor(drafts).reshape(len(drafts), num_speculative_tokens)

    def _cached(self, table: Sequence[int], end: int) -> list[int]:
        text = []
        for position in range(end):
            slot = table[position // SIZE] * SIZE + position % SIZE
            found, token = self.cache.get(slot, (-1, 0))
            text.append(token if found == position else -1)
        return text

    def take_last_draft_probs(self) -> None:
        return None


def after(token: int) -> int:
    return int(circle([token]).argmax())


class Stub:
    """vLLM's runner around the small engine: blocks of a KV cache that requests take and give back."""

    def __init__(self, own: Own, drafters: str, policy: str, *, prefixes: bool = False) -> None:
        config = configuration(most=LONGEST)
        options = Options(drafters=tuple(drafters.split(",")), policy=policy)
        self.proposer: Any = Proposer(config, options=options, own=own)
        self.proposer.load_model(SimpleNamespace(parameters=lambda: iter([torch.zeros(1)])))
        assert config.speculative_config.disable_padded_drafter_batch
        self.free, self.blocks = list(range(200)), dict[str, list[int]]()
        self.prefixes, self.computed, self.calls = prefixes, dict[str, int](), list[int]()

    def ask(self, jobs: list[Job], sampled: list[list[int]]) -> list[list[int]]:
        for key in [key for key in self.blocks if key not in {job.key for job in jobs}]:
            self.free += self.blocks.pop(key)
            del self.computed[key]
        texts = [job.text for job in jobs]
        starts = [self.computed.get(job.key, 0) for job in jobs]
        counts = [
            1 + len(job.draft) if job.key in self.computed else len(text) - len(new)
            for job, text, new in zip(jobs, texts, sampled, strict=True)
        ]
        for job, text in zip(jobs, texts, strict=True):
            mine = self.blocks.setdefault(job.key, [])
            while len(mine) * SIZE < len(text) + LONGEST:
                mine.append(self.free.pop())
            self.computed[job.key] = len(text) - 1
        table = np.zeros((len(jobs), 64), dtype=np.int32)
        for row, job in enumerate(jobs):
            table[row, : len(self.blocks[job.key])] = self.blocks[job.key]
        held = [
            torch.tensor(text)[start : start + count]
            for text, start, count in zip(texts, starts, counts, strict=True)
        ]
        padded = [
            torch.cat([one, one.new_zeros(count - len(one))]) for one, count in zip(held, counts, strict=True)
        ]
        made, given = self._step(jobs, sampled, starts, counts, table)
        drafts: list[list[int]] = self.proposer.drive(
            made, given | {"hidden_states": torch.cat(padded).float()[:, None]}
        )
        return drafts

    def _step(self, jobs: list[Job], sampled: Any, starts: Any, counts: Any, table: Any) -> Any:
        made = step(
            jobs,
            use_aux_hidden_state_outputs=False,
            get_model=lambda: None,
            cache_config=SimpleNamespace(enable_prefix_caching=self.prefixes),
        )
        made.runner.input_batch.num_computed_tokens_cpu = np.array(starts)
        made.runner.input_batch.block_table = [SimpleNamespace(get_numpy_array=lambda: table)]
        made.scheduled.num_scheduled_tokens = {job.key: n for job, n in zip(jobs, counts, strict=True)}
        made.scheduled.total_num_scheduled_tokens = sum(counts)
        given = {
            "common_attn_metadata": Metadata(block_table_tensor=torch.from_numpy(table)),
            "sampling_metadata": SimpleNamespace(temperature=None),
            "sampled_token_ids": sampled,
        }
        return made, given

    def serve(self, engine: Engine) -> None:
        while engine.waiting or engine.running or engine.away:
            engine.step(self.ask)


def serve(stub: Stub, *, puts_off: bool = False, seed: int = 4) -> Engine:
    """Nine texts of three at a time, some of which are put off and read again."""
    engine, rng = Engine(circle, seats=3, seed=seed), random.Random(seed)
    for k in range(9):
        start = 10 + k % 3
        prompt = [start]
        while len(prompt) < 5 + k:
            prompt.append(after(prompt[-1]))
        engine.add(f"{k}", prompt, 30 + k)
    while engine.waiting or engine.running or engine.away:
        if puts_off and len(engine.running) > 1 and rng.random() < 0.2:
            engine.put_off(engine.running[0])
        engine.step(stub.ask)
    for job in engine.done:
        text = job.text
        assert all(b == after(a) for a, b in pairwise(text)), "the text is the target's"
    return engine


@pytest.mark.parametrize("puts_off", [False, True], ids=["steady", "preempted"])
@pytest.mark.parametrize("name", ["vllm:draft_model:/m", "vllm:eagle:/m"])
def test_drafts_after_skipped_steps_are_those_of_a_drafter_that_read_all(name: str, puts_off: bool) -> None:
    own = Own(head="eagle" in name)
    stub = Stub(own, f"{name},ngram", "random")
    serve(stub, puts_off=puts_off)
    counts = stub.proposer.follower.totals()
    mine = counts["drafters"][name]
    assert own.holes == 0 and mine["num_drafts"] > 20 and mine["num_faults"] == 0
    assert mine["num_accepted_tokens"] >= 0.8 * mine["num_draft_tokens"], "it is right, but for ends of texts"
    assert own.calls < counts["num_steps"], "steps in which nobody wants it do not call it"
    assert not stub.proposer.model.requests or set(stub.proposer.model.requests) <= {"8", "7", "6"}


def test_a_drafter_that_did_not_catch_up_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadState, "span", lambda self, with_states: (self.end - 1, self.end))
    own = Own(head=False)
    serve(Stub(own, "vllm:draft_model:/m,ngram", "random"))
    assert own.holes > 10


@pytest.mark.parametrize("name", ["vllm:draft_model:/m", "vllm:eagle:/m"])
def test_auto_grades_and_plays_it(name: str) -> None:
    own = Own(head="eagle" in name)
    stub = Stub(own, f"{name},suffix", "auto?length=5")
    serve(stub)
    counts, policy = stub.proposer.follower.totals(), stub.proposer.follower.policy
    at = policy.drafters.index(name)
    assert own.holes == 0 and counts["drafters"][name]["num_faults"] == 0
    assert policy.acceptance[at].seen > 0.0, "it was graded or played"
    assert not any("cascade" in drafter for drafter in policy.drafters)


def test_grades_are_of_the_tokens_that_it_guessed() -> None:
    own = Own(head=True)
    stub = Stub(own, "vllm:eagle:/m,ngram", "hedgespec")
    seen: list[float] = []
    grade = stub.proposer.model.grade

    def spy(jobs: Any) -> Any:
        grades = grade(jobs)
        seen.extend(one.accept for mine in grades for one in mine)
        return grades

    stub.proposer.model.grade = spy
    serve(stub)
    assert len(seen) > 100 and sum(one == 1.0 for one in seen) >= 0.9 * len(seen)


def test_vllm_gets_the_distributions_of_sampled_drafts_and_certainty_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Own(head=False)
    stub = Stub(own, "vllm:draft_model:/m,ngram", "random")
    propose, drive, seen = own.propose, stub.proposer.drive, Counter[str]()

    def sample(**given: Any) -> torch.Tensor:
        made = propose(**given)
        probs = torch.full((*made.shape, VOCAB), 1.0 / VOCAB) if made.numel() else None
        monkeypatch.setattr(own, "take_last_draft_probs", lambda: probs)
        return made

    def check(step: Step, given: Any) -> Any:
        drafts = drive(step, given)
        rows = getattr(step.runner, "_draft_probs", None)
        if rows is None:
            return drafts
        assert step.runner._draft_prob_req_ids == step.runner.input_batch.req_ids
        assert len(rows) == len(drafts)
        for row, draft in zip(rows, drafts, strict=True):
            for at, token in enumerate(draft):
                assert float(row[at].sum()) == pytest.approx(1.0, abs=1e-3)
                seen["certain" if float(row[at, token]) == 1.0 else "sampled"] += 1
        return drafts

    monkeypatch.setattr(own, "propose", sample)
    monkeypatch.setattr(stub.proposer, "drive", check)
    serve(stub)
    assert seen["certain"] > 20 and seen["sampled"] > 20


def test_states_that_wait_too_long_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.hosts.vllm.drafters.MOST_WAITING", 12)
    own = Own(head=True)
    stub = Stub(own, "vllm:eagle:/m,ngram", "static-3?drafter=ngram")
    most = 0
    engine = Engine(circle, seats=3)
    engine.add("a", [10, 11, 12], 60)
    while engine.waiting or engine.running:
        engine.step(stub.ask)
        most = max(most, max((state.waiting for state in stub.proposer.model.requests.values()), default=0))
    assert own.calls >= 4 and most <= 12


@pytest.mark.parametrize(("name", "reads"), [("vllm:eagle:/m", True), ("vllm:draft_model:/m", False)])
def test_a_head_reads_the_rest_of_a_text_whose_blocks_stay_in_the_cache(name: str, reads: bool) -> None:
    own = Own(head=reads)
    stub = Stub(own, f"{name},ngram", "static-3?drafter=ngram", prefixes=True)
    engine = Engine(circle, seats=3)
    for k in range(3):
        engine.add(f"{k}", [10, 11, 12], 12)
    stub.serve(engine)
    assert own.calls == (1 if reads else 0), "one pass for all that end in a step"


def test_a_lookup_of_vllm_drafts_from_the_engines_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lookup:
        def __init__(self, config: Any) -> None:
            self.least = config.speculative_config.prompt_lookup_min

        def propose(self, k: int, sampled: Any, lengths: Any, texts: Any) -> list[list[int]]:
            return [
                texts[row, : lengths[row]][-self.least :].tolist()[:k] if new else []
                for row, new in enumerate(sampled)
            ]

    monkeypatch.setitem(
        sys.modules, "vllm.v1.spec_decode.ngram_proposer", SimpleNamespace(NgramProposer=Lookup)
    )
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        model_config=None,
        scheduler_config=None,
        parallel_config=None,
    )
    lookup = NgramDrafter(EngineDrafter.parse("vllm:ngram?min=3"), config)
    texts = np.array([[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]], dtype=np.int32)
    lookup.begin({"a": 0, "b": 1}, texts, lambda request: "b")
    from draftwise.core.drafts import Draft
    from draftwise.core.drafts import Job as Asked

    def request(tokens: list[int]) -> Request:
        generator = random.Random(0)
        return Request(7, tokens, 2, Sampling(max_new_tokens=9), generator, generator)

    (draft,) = lookup.draft([Asked(request([5, 6, 7, 8, 9]), 2)])
    assert draft == Draft.chain([7, 8]) and lookup.hint(request([5, 6, 7, 8, 9])) == 3.0
    (earlier,) = lookup.draft([Asked(request([5, 6, 7, 8]), 3)])
    assert earlier.tokens == (6, 7, 8), "graded where the text was shorter"


def test_a_vllm_without_that_lookup_is_named() -> None:
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=4))
    for field in ("model_config", "scheduler_config", "parallel_config"):
        setattr(config, field, None)
    with pytest.raises(UserError, match="no such lookup"):
        NgramDrafter(EngineDrafter.parse("vllm:ngram"), config)


def test_outside_vllm_its_drafters_are_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(UserError, match=r"inside vLLM alone: see draftwise\.hosts\.vllm\.vllm_arguments"):
        draftwise.Decoder.from_pretrained("zoo:target", drafters=["vllm:ngram"])
