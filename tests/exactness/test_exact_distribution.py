"""Sampled text has the target's exact distribution, for every kind of drafter, setting, stop rule and policy.

Drafters that break a rule of lossless drafting are caught by the same tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from draftwise.core.arms import Arm, Stop
from draftwise.core.drafts import Draft, Job
from draftwise.core.loop import Loop
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.datastore import build
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.retrieval import RetrievalDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.none import NoneDrafter
from draftwise.policies.bandit import BanditPolicy
from draftwise.policies.learners.fixed import Fixed, Uniform
from draftwise.policies.recorders.bandit import Bandit, reward
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from tests.core.turns import loop_with
from tests.distributions import check_distribution, exact, p_value, sample
from tests.effort import some

V, PROMPT, LENGTH, N = 4, (0, 1, 2, 1, 0, 1), 3, 3000
RNG = np.random.default_rng(7)
P = RNG.dirichlet(np.full(V, 0.6), size=V) * 0.94 + 0.015
GOOD = 0.7 * P + 0.3 * RNG.dirichlet(np.ones(V), size=V)
BAD = P[:, ::-1].copy()  # likely where the target is not

RULES = [Stop("max-confidence", 0.6), Stop("confidence", 0.4), Stop("cumulative", 0.3), Stop("svip", 0.8)]
SETTINGS = {
    "plain": Sampling(max_new_tokens=LENGTH, temperature=1.0),
    "cold": Sampling(max_new_tokens=LENGTH, temperature=0.6),
    "top-k": Sampling(max_new_tokens=LENGTH, temperature=1.0, top_k=2),
    "top-p": Sampling(max_new_tokens=LENGTH, temperature=1.3, top_p=0.8),
    "min-p": Sampling(max_new_tokens=LENGTH, temperature=1.0, min_p=0.2),
    "penalties": Sampling(
        max_new_tokens=LENGTH,
        temperature=0.9,
        repetition_penalty=1.4,
        presence_penalty=0.3,
        frequency_penalty=0.2,
    ),
}


def known(settings: str) -> dict[tuple[int, ...], float]:
    """The exact distribution of texts."""
    return exact(markov(P), PROMPT, V, LENGTH, SETTINGS[settings])


def check(loop: Loop, settings: str = "plain", *, batch: int = 1) -> None:
    """Assert that a loop's texts have it."""
    check_distribution(loop, PROMPT, SETTINGS[settings], N, known(settings), batch=batch)


@pytest.fixture(scope="module", autouse=True)
def datastore(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A datastore of random digits, each a token: it always finds something, and is wrong as often as not."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "corpus.txt").write_text("".join(str(d) for d in np.random.default_rng(3).integers(0, V, 400)))
    STORE.append(str(folder / "store"))
    build(
        [folder / "corpus.txt"],
        STORE[-1],
        encode=lambda text: [int(d) for d in text if d.isdigit()],
        vocab_size=V,
        fingerprint="digits",
    )


class Siblings(SimDrafter):
    """Beside each sampled token the two others after it in the vocabulary, each with the token 1 below it."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        drafts = []
        for job in jobs:
            chain = self._chain(job)
            tokens, parents, n = list(chain.tokens), list(chain.parents), len(chain.tokens)
            for node in range(n):
                for k in (1, 2):
                    tokens += [(chain.tokens[node] + k) % V, 1]
                    parents += [node - 1, len(parents)]
            drafts.append(Draft(tuple(tokens), tuple(parents), chain.probs, chain.dist))
        return drafts


STORE: list[str] = []
NAMES = ["none", "good", "bad", "picked", "picked-bad", "ngram", "suffix", "retrieval"]


def drafters() -> dict[str, Drafter]:
    return {
        "retrieval": RetrievalDrafter(STORE[-1], min_match=1, min_prob=0.0),
        "none": NoneDrafter(),
        "good": SimDrafter(markov(GOOD)),
        "bad": SimDrafter(markov(BAD)),
        "picked": SimDrafter(markov(GOOD), sampled=False),
        "picked-bad": SimDrafter(markov(BAD), sampled=False),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }


def loop(team: Mapping[str, Drafter], arms: Sequence[Arm], learner: Any = Fixed, seed: int = 0) -> Loop:
    policy = BanditPolicy(tuple(arms), learner)
    return Loop(SimTarget(markov(P), V), team, policy, Bandit(reward("accepted"), 5), seed=seed)


@pytest.mark.parametrize(("name", "settings"), some(product(NAMES, SETTINGS), 5))
def test_every_drafter_keeps_the_distribution(name: str, settings: str) -> None:
    check(loop(drafters(), [Arm(name, 3)]), settings)


@pytest.mark.parametrize("settings", ["plain", "top-p", "penalties"])
@pytest.mark.parametrize(("name", "q", "gain"), [("good", GOOD, 1.0), ("bad", BAD, 1.2)])
def test_picked_siblings_of_sampled_tokens_keep_the_distribution(
    name: str, q: Any, gain: float, settings: str
) -> None:
    """And more tokens are accepted than of the chain alone, of a bad drafter most."""
    sampling, both = SETTINGS[settings], []
    team, wide = drafters() | {"siblings": Siblings(markov(q))}, Arm("siblings", 2, width=5)
    for arm in (wide, Arm(name, 2)):
        one = loop(team, [arm])
        rounds = [round for _ in range(200) for round in one.run([PROMPT], sampling)]
        both.append(sum(round.accepted for round in rounds))
    assert both[0] > gain * both[1]
    distribution = exact(markov(P), PROMPT, V, LENGTH, sampling)
    check_distribution(loop(team, [wide]), PROMPT, sampling, N, distribution, batch=3)


@pytest.mark.parametrize(("name", "rule"), some(product(["good", "bad", "picked"], RULES), 3))
def test_stopping_early_keeps_the_distribution(name: str, rule: Stop) -> None:
    check(loop(drafters(), [Arm(name, 4, stop=rule)]))


@pytest.mark.parametrize(
    "policy", ["random?arms=drafters*lengths*stops&lengths=0,1,3", "ucb1?arms=drafters*lengths&lengths=1,3"]
)
@pytest.mark.parametrize("batch", [1, 5])
def test_switching_keeps_the_distribution(policy: str, batch: int) -> None:
    check(loop_with(SimTarget(markov(P), V), drafters(), policy), "penalties", batch=batch)


def test_choosing_by_what_was_accepted_keeps_the_distribution() -> None:
    arms = [Arm("good", 3), Arm("bad", 3), Arm("picked-bad", 2), Arm("none", 0)]
    check(loop(drafters(), arms, Uniform), batch=3)


# -- what must not be done, and is caught ---------------------------------------------------------------


class Unsafe(SimDrafter):
    """A drafter that breaks one rule of lossless drafting."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [self.spoil(job) for job in jobs]

    def spoil(self, job: Job) -> Draft:
        raise NotImplementedError


class DropsUnlikely(Unsafe):
    """Drops a sampled token because of its own probability, and what follows it."""

    def spoil(self, job: Job) -> Draft:
        whole = self._chain(job)
        keep = next((i for i, q in enumerate(whole.probs) if q < 0.4), len(whole.tokens))
        return Draft.chain(whole.tokens[:keep], probs=whole.probs[:keep], dist=whole.dist[:keep])


class PickedAsSampled(Unsafe):
    """Declares its most likely token as a sample of its distribution."""

    def spoil(self, job: Job) -> Draft:
        sampled = SimDrafter(self.distribution, sampled=False)._chain(job)
        rows = []
        history = list(job.request.tokens)
        for token in sampled.tokens:
            rows.append(np.exp(self.distribution(history)))
            history.append(token)
        return Draft.chain(sampled.tokens, probs=sampled.probs, dist=rows)


class BestOfTwo(Unsafe):
    """Samples twice and submits the likelier draft as if it had been the only one."""

    def spoil(self, job: Job) -> Draft:
        return max(self._chain(job), self._chain(job), key=lambda d: d.probs[0])


class OtherTemperature(Unsafe):
    """Samples from one distribution and reports another."""

    def spoil(self, job: Job) -> Draft:
        made = self._chain(job)
        flat = [np.full(V, 1 / V)] * len(made.tokens)
        return Draft.chain(made.tokens, probs=[1 / V] * len(made.tokens), dist=flat)


@pytest.mark.parametrize("kind", [DropsUnlikely, PickedAsSampled, BestOfTwo, OtherTemperature])
def test_every_unsafe_variant_is_caught(kind: type[Unsafe]) -> None:
    counts = sample(loop({"unsafe": kind(markov(GOOD))}, [Arm("unsafe", 3)]), PROMPT, SETTINGS["plain"], N)
    assert p_value(counts, known("plain")) < 1e-6


# -- greedy, and the seed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_targets_own(name: str) -> None:
    sampling = Sampling(max_new_tokens=40, repetition_penalty=1.2)
    plain = sample(loop({}, [Arm("none", 0)]), PROMPT, sampling, 1)
    assert sample(loop(drafters(), [Arm(name, 4)]), PROMPT, sampling, 1) == plain


@pytest.mark.parametrize("name", ["picked", "picked-bad", "ngram", "suffix", "retrieval"])
def test_a_seed_gives_the_same_text_with_and_without_a_picked_draft(name: str) -> None:
    sampling = Sampling(max_new_tokens=60, temperature=1.0, seed=5)
    plain = sample(loop({}, [Arm("none", 0)], seed=1), PROMPT, sampling, 1)
    assert sample(loop(drafters(), [Arm(name, 4)], seed=2), PROMPT, sampling, 1) == plain


@pytest.mark.parametrize("name", ["bad", "picked-bad", "ngram", "suffix", "retrieval"])
def test_the_drafts_of_these_tests_are_accepted_and_rejected(name: str) -> None:
    made = loop(drafters(), [Arm(name, 3)])
    rounds = list(made.run([list(PROMPT)] * 200, SETTINGS["plain"]))
    assert any(r.accepted == r.drafted > 0 for r in rounds)
    assert any(r.accepted < r.drafted for r in rounds)
