"""Trees of drafted tokens: every architecture keeps its own text and distribution, whatever the tree and the
batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch

from draftwise.core.arms import Arm
from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.loop import Loop
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.errors import UserError
from draftwise.models.runner import ModelRunner
from draftwise.models.runner.cache import RowCache
from draftwise.targets.hf import HFTarget
from tests.core.turns import Anyone, Stateless, written
from tests.distributions import check_distribution, exact, p_value, sample_each
from tests.effort import some
from tests.exactness.test_exact_hf import PROMPT, SETTINGS, Grammar, alternating, distribution_of, grammars
from tests.targets.test_hf import KINDS, Oracle, prompts
from tests.tiny import VOCAB, model, own_text

Texts = dict[tuple[int, ...], list[int]]
PROMPTS = prompts(6)


@dataclass(slots=True)
class Forester(Stateless):
    """Grows a random tree, through which the true continuation goes where it is known and luck will have it.

    `grow` says how: a node's parent is one of the `deep` last nodes, at least the first time that it is free.
    """

    texts: Texts = field(default_factory=dict)
    truth: float = 0.7
    deep: int = 4
    random: Random = field(default_factory=lambda: Random(3))

    def one(self, job: Job) -> Draft:
        r = job.request
        rest = self.texts.get(tuple(r.tokens[: r.prompt_length]), [])[r.position :]
        tokens: list[int] = []
        parents: list[int] = []
        depths = {-1: 0}
        on = {-1}  # the nodes that say what the target says
        for node in range(self.random.randint(0, job.length * job.width)):
            parent = self.random.choice([p for p in depths if p == -1 or p >= node - self.deep])
            if depths[parent] == job.length:
                parent = -1
            right = rest[depths[parent]] if parent in on and depths[parent] < len(rest) else None
            token = self.random.randrange(VOCAB)
            if right is not None and self.random.random() < self.truth:
                token = right
            if token == right:
                on.add(node)
            tokens.append(token)
            parents.append(parent)
            depths[node] = depths[parent] + 1
        return Draft(tuple(tokens), tuple(parents))


def team(texts: Texts) -> dict[str, Any]:
    return {
        "good": Forester(texts, truth=0.8),
        "deep": Forester(texts, truth=0.95, deep=1),
        "wide": Forester(texts, truth=0.3, deep=99),
        "bad": Forester({}),
    }


ARMS = (
    Arm("none", 0),
    Arm("good", 6, width=3),
    Arm("deep", 9, width=1),
    Arm("wide", 2, width=12),
    Arm("wide", 1, width=4),
    Arm("bad", 4, width=4),
)


def grown(target: HFTarget, drafters: dict[str, Any], arms: Sequence[Arm] = ARMS) -> Loop:
    policy = Anyone(tuple(arms))
    return Loop(target, drafters, policy, policy)


def texts_of(loop: Loop, n: int, batch: int) -> list[list[int]]:
    return written(loop, PROMPTS, n, batch)


CHAINS_ONLY = {"minimax-sparse"}
TREE_KINDS = [kind for kind in KINDS if kind[0] not in CHAINS_ONLY]


@pytest.mark.parametrize(("name", "attention"), some(TREE_KINDS, 3))
def test_greedy_text_is_the_models_own(name: str, attention: str) -> None:
    """Six prompts join and leave a batch of chains and trees."""
    made = model(name, attention=attention)
    own = [own_text(made, p, 40) for p in PROMPTS]
    truth = {tuple(p): text for p, text in zip(PROMPTS, own, strict=True)}
    for batch in (1, 3):
        assert texts_of(grown(HFTarget(made, chunk=8), team(truth)), 40, batch) == own


@pytest.mark.parametrize("batch", [1, 3])
def test_the_trees_of_these_tests_branch_and_are_accepted_and_rejected(batch: int) -> None:
    made = model("llama")
    truth = {tuple(p): own_text(made, p, 40) for p in PROMPTS}
    target = HFTarget(made)
    commit = target.commit
    seen: list[tuple[Draft, Verdict]] = []

    def noted(batch: Any) -> None:
        seen.extend((draft, verdict) for _, draft, verdict in batch)
        commit(batch)

    target.commit = noted  # type: ignore[method-assign]
    texts_of(grown(target, team(truth)), 40, batch)
    trees = [(draft, verdict.path) for draft, verdict in seen if not draft.is_chain]
    apart = [path for _, path in trees if path != tuple(range(len(path)))]
    assert any(not path for _, path in trees), "a tree without a true node"
    assert any(len(path) >= 4 for path in apart), "a deep path that has to move"
    assert any(path[0] == 0 for path in apart), "a path of which a part has to move"
    assert any(path and path not in apart for _, path in trees), "a path that is in place"
    assert any(draft.is_chain and len(draft.tokens) > 2 for draft, _ in seen)
    assert any(draft.parents.count(-1) >= 8 for draft, _ in trees)


def place(tree: Draft, node: int) -> list[int]:
    """The tokens from the root of a tree down to a node."""
    path: list[int] = []
    while node >= 0:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return path[::-1]


@pytest.mark.parametrize(("name", "attention"), some(TREE_KINDS, 3))
def test_a_node_has_the_logits_of_its_path(name: str, attention: str) -> None:
    """Rows of different lengths, some beyond their window; a chain and an empty draft beside trees."""
    made = model(name, attention=attention)
    target = HFTarget(made)
    rng = Random(2)
    requests, batch = [], []
    for i, length in enumerate((3, 40, 17, 8)):
        text = [rng.randrange(VOCAB) for _ in range(length)]
        requests.append(Request(i, text, length, Sampling(), Random(i), Random(i)))
        target.open(requests[-1])
        batch.append((requests[-1], Forester(random=rng).one(Job(requests[-1], 12, width=2))))
    # Two branches side by side, deeper than the window: a node's slot is up to 14 beyond its position.
    deep = Draft(tuple(rng.randrange(VOCAB) for _ in range(28)), (-1, *range(-1, 26)))
    batch[1] = (requests[1], deep)
    batch[2] = (requests[2], Draft.chain([5, 6, 7]))
    batch[3] = (requests[3], Draft())
    for part in (batch[:1], batch, batch[1:2], batch[::-1]):
        for (request, draft), scores in zip(part, target.verify(part), strict=True):
            for node in range(-1, len(draft.tokens)):
                with torch.inference_mode():
                    text = [*request.tokens, *place(draft, node)]
                    alone = made(torch.tensor([text])).logits[0, -1]
                found: Any = scores
                torch.testing.assert_close(found.logits[node + 1], alone, atol=1e-5, rtol=0)
        target.commit([(request, draft, Verdict((), 0)) for request, draft in part])


def held(target: HFTarget, row: int, n: int) -> list[torch.Tensor]:
    """Keys and values of a row's first `n` slots, layer by layer."""
    layers = target.runner.cache._rows
    return [t[row, :, :n].clone() for layer in layers for t in (layer.keys, layer.values)]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "qwen3-window"])
def test_the_cache_holds_what_reading_the_text_leaves_there(name: str) -> None:
    made, text = model(name), [3, 4, 5, 6, 7, 8, 9]
    target = HFTarget(made)
    requests = [Request(i, text[: 5 + i], 5, Sampling(), Random(i), Random(i)) for i in range(3)]
    tree = Draft((1, 9, 2, 3, 4, 5, 6), (-1, -1, 1, 0, 2, 4, 5))  # 9 2 4 5 6 lies in nodes 1 2 4 5 6
    paths = [(1, 2, 4, 5, 6), (0, 3), (1,)]
    for request in requests:
        target.open(request)
    target.verify([(r, tree) for r in requests])
    for request, path in zip(requests, paths, strict=True):
        request.tokens += [*(tree.tokens[i] for i in path), 0]
    target.commit([(r, tree, Verdict(path, 0)) for r, path in zip(requests, paths, strict=True)])
    for row, request in enumerate(requests):
        n = len(request.tokens) - 1
        assert target.runner.cached_lengths[row] == n
        fresh = HFTarget(made)
        fresh.open(request)
        fresh.verify([(request, Draft())])
        for mine, alone in zip(held(target, row, n), held(fresh, 0, n), strict=True):
            torch.testing.assert_close(mine, alone, atol=1e-6, rtol=0)


def test_more_nodes_than_positions_are_left() -> None:
    """The window of GPT-2 has an embedding for each of 128 positions: depth counts, not nodes."""
    made = model("gpt2")
    prompt = [5, 6, 5, 6] * 28
    own = own_text(made, prompt, 17)
    loop = grown(HFTarget(made), {"wide": Forester({tuple(prompt): own}, 0.6, 99)}, [Arm("wide", 8, width=8)])
    request = loop.add(prompt, Sampling(max_new_tokens=50))
    beside = loop.add([7, 8], Sampling(max_new_tokens=126))
    drafted = 0
    while loop.open:
        for round in loop.step():
            drafted = max(drafted, round.drafted)
    assert drafted > 16 and not loop.faults["wide"]
    assert request.tokens[112:] == own and len(beside.tokens) == 128 == 2 + 126


def test_memory_that_was_never_written_does_no_harm() -> None:
    made = model("mistral-window")
    own = [own_text(made, p, 20) for p in PROMPTS]
    truth = {tuple(p): text for p, text in zip(PROMPTS, own, strict=True)}
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        assert texts_of(grown(HFTarget(made, chunk=8), team(truth)), 20, 3) == own
    finally:
        torch.use_deterministic_algorithms(False)


def test_chains_take_no_step_for_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass without a tree makes no mask of kin, and no key or value moves after it."""
    monkeypatch.setattr(ModelRunner, "_tree_places", None)  # calling it would raise
    monkeypatch.setattr(RowCache, "move", None)
    made = model("llama")
    own = [own_text(made, p, 20) for p in PROMPTS]
    truth = {tuple(p): text for p, text in zip(PROMPTS, own, strict=True)}
    for batch in (1, 3):
        loop = grown(HFTarget(made), {"chains": Oracle(truth, 0.3)}, [Arm("chains", 6), Arm("none", 0)])
        assert texts_of(loop, 20, batch) == own


def test_what_cannot_read_a_tree_is_refused_by_name() -> None:
    """ALiBi goes by the slot, which in a tree is not the position; flash attention takes no mask."""
    from transformers import AutoModelForCausalLM, MptConfig

    auto: Any = AutoModelForCausalLM
    mpt = auto.from_config(MptConfig(vocab_size=VOCAB, d_model=16, n_layers=1, n_heads=2, max_seq_len=64))
    target = HFTarget(mpt.eval())
    request = Request(0, [3, 4, 5], 3, Sampling(), Random(0), Random(0))
    target.open(request)
    target.verify([(request, Draft.chain([6, 7]))])
    target.commit([(request, Draft(), Verdict((), 0))])
    with pytest.raises(UserError, match=r"MptForCausalLM.*chains"):
        target.verify([(request, Draft((6, 7), (-1, -1)))])
    llama = model("llama")
    target = HFTarget(llama)
    target.open(request)
    llama.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UserError, match=r"Llama.*flash_attention_2.*'sdpa' or 'eager'"):
        target.verify([(request, Draft((6, 7), (-1, -1)))])


# -- sampling ----------------------------------------------------------------------------------------


def most_likely(distribution: dict[tuple[int, ...], float]) -> Texts:
    """The most likely text, for trees of which much is accepted."""
    best = max(distribution, key=distribution.__getitem__)
    return {tuple(PROMPT): list(best)}


SAMPLED = (Arm("wide", 2, width=12), Arm("wide", 1, width=9), Arm("none", 0))


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_token_marginals(settings: str) -> None:
    made = model("llama", scale=5.0)
    distribution = exact(distribution_of(made), PROMPT, VOCAB, 2, SETTINGS[settings])
    likely = most_likely(distribution)
    loop = grown(HFTarget(made), {"wide": Forester(likely, deep=99)}, SAMPLED)
    loop.add([7, 8, 9, 7, 8] * 3, Sampling(max_new_tokens=90, temperature=1.0))  # a longer text beside them
    check_distribution(loop, PROMPT, SETTINGS[settings], 1500, distribution, batch=100)


def test_a_state_of_a_processor_moves_on_once_a_token() -> None:
    made = model("llama", scale=5.0)
    distribution = alternating(made)
    loop = grown(HFTarget(made), {"wide": Forester(most_likely(distribution), deep=99)}, SAMPLED)
    counts = sample_each(loop, PROMPT, grammars(1000), batch=50)
    assert p_value(counts, distribution) > 1e-3


class Witness(Grammar):
    """Notes what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen += input_ids.tolist()
        return super().__call__(input_ids, scores)


def test_a_processor_sees_every_committed_prefix_once_and_in_order() -> None:
    made = model("llama")
    ids = torch.tensor([PROMPT])
    own = made.generate(
        ids, max_new_tokens=40, do_sample=False, logits_processor=[Grammar()], attention_mask=ids != -1
    )[0].tolist()
    witness = Witness()
    loop = grown(HFTarget(made), team({tuple(PROMPT): own[len(PROMPT) :]}))
    request = loop.add(PROMPT, Sampling(max_new_tokens=40, processors=(witness,)))
    accepted = 0
    while loop.open:
        accepted += sum(round.accepted for round in loop.step())
    assert request.tokens == own and accepted > 10
    assert witness.seen[:40] == [own[:n] for n in range(len(PROMPT), len(own))]


def test_a_seed_gives_plain_decodings_text() -> None:
    made = model("llama", scale=5.0)
    sampling = Sampling(max_new_tokens=60, temperature=1.0, seed=11)
    plain = grown(HFTarget(made), {}, [Arm("none", 0)])
    own = [t for r in plain.run([PROMPT], sampling) for t in r.tokens]
    loop = grown(HFTarget(made), team({tuple(PROMPT): own}))
    rounds = list(loop.run([PROMPT], sampling))
    assert [t for r in rounds for t in r.tokens] == own and sum(r.accepted for r in rounds) > 15
