"""Drafters with another tokenizer than the target's: the text stays exact, whatever they draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise import Decoder, UserError
from draftwise.build import complete
from draftwise.core.drafts import Job
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.roles import GradeJob
from draftwise.core.sampling import Sampling
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.neural.translated import TranslatedDrafter, lm
from draftwise.policies.catalogue import method
from draftwise.targets.hf import HFTarget
from draftwise.testing import drafter_suite
from tests.core.turns import loop_with
from tests.distributions import check_distribution, exact
from tests.effort import thorough
from tests.exactness.test_exact_hf import distribution_of
from tests.other_tokenizers import coarser, letters, permuted, small
from tests.tiny import VOCAB, model
from tests.tiny_tokenizers import tokenizer as tiny

ORDER = [(7 * i + 3) % VOCAB for i in range(VOCAB)]
MERGES = ("ab", "df", "fd", "da", "ca", "cc")
PROMPT = [3, 5, 3, 5, 3]
TEXTS = (
    "Translate German to English: Ein Hund läuft am Strand.",
    "def add(a, b):\n    ",
    "Was ist 数据 🙂?",
    "How many eggs are 3 dozen?",
)


@cache
def target_model() -> Any:
    return model("llama", scale=5.0)


def good(**options: Any) -> Any:
    """The target itself under other ids, and pairs of letters that it was not trained on."""
    made = permuted(target_model(), ORDER, more=len(MERGES))
    pair = letters(range(VOCAB)), letters(ORDER, MERGES)
    return lm(made, VOCAB, pair, probe=False, **options)


def plain(**options: Any) -> Any:
    """The target itself under other ids."""
    pair = letters(range(VOCAB)), letters(ORDER)
    return lm(permuted(target_model(), ORDER), VOCAB, pair, probe=False, **options)


def bad(**options: Any) -> Any:
    made = model("llama", seed=9, scale=9.0)
    made = permuted(made, list(range(VOCAB)), more=len(MERGES))
    return lm(made, VOCAB, (letters(range(VOCAB)), letters(ORDER, MERGES)), probe=False, **options)


TEAM: dict[str, Callable[[], Any]] = {
    "good-text": lambda: good(vocabulary="text"),
    "good-shared": lambda: good(vocabulary="shared"),
    "bad-text": lambda: bad(vocabulary="text"),
    "bad-shared": lambda: bad(vocabulary="shared"),
}


@pytest.mark.parametrize("name", TEAM)
def test_drawn_text_has_the_targets_distribution(name: str) -> None:
    sampling = Sampling(max_new_tokens=2, temperature=0.9, top_k=12)
    distribution = exact(distribution_of(target_model()), PROMPT, VOCAB, 2, sampling)
    loop = loop_with(HFTarget(target_model()), {name: TEAM[name]()}, "static-2")
    check_distribution(loop, PROMPT, sampling, 2000, distribution, batch=100)


def test_switching_between_ways_keeps_the_distribution() -> None:
    sampling = Sampling(max_new_tokens=2, temperature=0.9, top_k=12)
    distribution = exact(distribution_of(target_model()), PROMPT, VOCAB, 2, sampling)
    team = {name: make() for name, make in TEAM.items()}
    loop = loop_with(HFTarget(target_model()), team, "random?arms=drafters*lengths&lengths=0,1,3")
    check_distribution(loop, PROMPT, sampling, 2000, distribution, batch=50)


@thorough
def test_it_passes_the_suite_of_drafters() -> None:
    first = plain()

    def make() -> Any:
        drafter = plain()
        drafter.runner.masks = first.runner.masks  # made once for every width: what is added late is no leak
        return drafter

    suite = drafter_suite(make, target=lambda: HFTarget(target_model()), samples=60)
    assert not suite.failures()


@pytest.mark.parametrize("vocabulary", ["text", "shared"])
def test_what_ends_a_draft_early_is_never_asked_about_the_drafters_own_ids(vocabulary: str) -> None:
    """A cascade looks the target's tokens up; a draft may be longer than it needs."""
    drafter, one, asked = plain(vocabulary=vocabulary), request(0, [4, 5, 6]), list[tuple[int, ...]]()

    def ends(tokens: Sequence[int]) -> bool:
        asked.append(tuple(tokens))
        return True

    (whole,) = drafter.draft([Job(one, 5)])
    (again,) = drafter.draft([Job(one, 5, until=ends)])
    assert again.tokens == whole.tokens and not asked


@pytest.mark.parametrize("vocabulary", ["text", "shared"])
def test_a_permuted_target_drafts_what_the_target_writes(vocabulary: str) -> None:
    drafter = plain(vocabulary=vocabulary)
    own = LMDrafter(target_model(), VOCAB, probe=False)
    requests = [request(i, text) for i, text in enumerate(([4, 5, 6], [9] * 7))]
    jobs = [Job(one, 5) for one in requests]
    assert [d.tokens for d in drafter.draft(jobs)] == [d.tokens for d in own.draft(jobs)]
    for one, draft in zip(requests, drafter.draft(jobs), strict=True):
        start, more = len(one.tokens), [*draft.tokens[:3], 1, 2]
        one.tokens += more
        job = GradeJob(one, start, [1.0] * 5, signals=frozenset({"chosen"}))
        (mine,), (theirs,) = drafter.grade([job]), own.grade([job])
        assert [g.accept for g in mine] == [g.accept for g in theirs]
        chosen = [g.signals.chosen for g in (*mine, *theirs) if g.signals]
        assert chosen[:5] == pytest.approx(chosen[5:], abs=1e-5)


def test_drawn_grades_are_those_of_the_same_model_in_the_targets_tokens() -> None:
    drafter, own = plain(vocabulary="shared"), LMDrafter(target_model(), VOCAB, probe=False)
    one = request(0, [4, 5, 6, 1, 2, 3], temperature=0.8)
    rows = torch.full((4, VOCAB), 1.0 / VOCAB)
    job = GradeJob(one, 2, [0.25] * 4, distributions=rows)
    (mine,), (theirs,) = drafter.grade([job]), own.grade([job])
    assert [g.accept for g in mine] == pytest.approx([g.accept for g in theirs], abs=1e-5)
    assert [g.overlap for g in mine] == pytest.approx([g.overlap for g in theirs], abs=1e-5)


def test_the_way_follows_the_request() -> None:
    drafter = good()
    greedy, drawn = request(0, [3, 5, 1]), request(1, [3, 5, 1], temperature=1.0)
    one, other = drafter.draft([Job(greedy, 3), Job(drawn, 3)])
    assert one.dist is None and other.dist is not None and tuple(other.dist.shape) == (3, VOCAB)
    (picked,) = drafter.draft([Job(drawn, 3, deterministic=True)])
    assert picked.dist is None and picked.tokens == one.tokens
    assert good(sample=False).draft([Job(drawn, 3)])[0].dist is None


def request(key: int, text: list[int], **sampling: Any) -> Request:
    from random import Random

    settings = Sampling(max_new_tokens=60, **sampling)
    return Request(key, list(text), len(text), settings, Random(key), Random(key))


class Moody(TranslatedDrafter):
    """Fails in one request, after its first draft."""

    def draft(self, jobs: Any) -> Any:
        if any(job.request.id == 1 and job.request.rounds > 1 for job in jobs):
            raise RuntimeError("a bad mood")
        return super().draft(jobs)


@cache
def bundled() -> Any:
    from draftwise.models.load import load_model

    return load_model("zoo:target", dtype="float32")


def team(tokenizer: Any) -> dict[str, Any]:
    useful, theirs = coarser(3000)
    other = tiny("llama")
    inner = LMDrafter(small(len(other), seed=2), len(other), probe=False)
    return {
        "useful": lm(useful, 4096, (tokenizer, theirs), probe=False),
        "bad": lm(small(len(other)), 4096, (tokenizer, other), probe=False),
        "moody": Moody(inner, 4096, (tokenizer, other)),
    }


@pytest.fixture(scope="module")
def plain_texts(tokenizer: Any) -> list[list[int]]:
    return written(tokenizer, "none", 4)[0]


def prompts(tokenizer: Any) -> list[list[int]]:
    encode = tokenizer.apply_chat_template
    turns = ([{"role": "user", "content": text}] for text in TEXTS)
    return [encode(turn, add_generation_prompt=True, return_dict=True)["input_ids"] for turn in turns]


def written(tokenizer: Any, policy: str, batch: int) -> tuple[list[list[int]], int, dict[str, int]]:
    """The texts of all prompts, how many drafted tokens were accepted, and the faults of each drafter."""
    made = team(tokenizer)
    chosen = method(policy, list(made))
    loop = Loop(HFTarget(bundled(), probe=False), complete(made, chosen), chosen.policy, chosen.recorder)
    own: dict[int, list[int]] = {}
    accepted = 0
    for round in loop.run(prompts(tokenizer), Sampling(max_new_tokens=20), batch=batch):
        own.setdefault(round.request, []).extend(round.tokens)
        accepted += round.accepted
    assert not any(drafter.views for drafter in made.values())
    return [own[i] for i in sorted(own)], accepted, dict(loop.faults)


@pytest.mark.parametrize(
    ("policy", "batch"),
    [
        ("static-4?drafter=useful", 1),
        ("max-confidence?drafter=useful", 4),
        ("static-4?drafter=bad", 4),
        ("auto", 1),
        ("auto", 4),
        ("hedgespec", 4),
        ("draft-all", 4),
    ],
)
def test_greedy_text_is_the_targets_own(
    tokenizer: Any, plain_texts: list[list[int]], policy: str, batch: int
) -> None:
    found, accepted, faults = written(tokenizer, policy, batch)
    assert found == plain_texts
    assert not faults["useful"] and not faults["bad"]
    if "useful" in policy:
        assert accepted > 10


def test_a_fault_stays_in_its_request(tokenizer: Any, plain_texts: list[list[int]]) -> None:
    found, _, faults = written(tokenizer, "static-4?drafter=moody", 4)
    assert found == plain_texts and faults["moody"]


def test_a_drafter_is_named_by_its_folder(tmp_path: Path) -> None:
    useful, theirs = coarser(3000)
    useful.save_pretrained(tmp_path / "other")
    theirs.save_pretrained(tmp_path / "other")
    names = [f"{tmp_path / 'other'}", f"lm:{tmp_path / 'other'}?vocabulary=shared"]
    decoder = Decoder.from_pretrained("zoo:target", drafters=names, probe=False)
    ways = [decoder.loop.pool.drafters[name].way for name in names]  # type: ignore[attr-defined]
    assert ways == ["auto", "shared"]
    plain = Decoder.from_pretrained("zoo:target", policy="none", probe=False)
    own = plain.generate(TEXTS[0], max_new_tokens=16)
    assert decoder.generate(TEXTS[0], max_new_tokens=16).text == own.text


def test_bad_options_are_refused() -> None:
    with pytest.raises(UserError, match="vocabulary=words: choose from auto, text, shared"):
        good(vocabulary="words")
    with pytest.raises(UserError, match="has the target's tokenizer, leave it out"):
        lm(target_model(), VOCAB, vocabulary="text", probe=False)
