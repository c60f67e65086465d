"""Draftwise inside a real vLLM: the texts are vLLM's own, whoever drafts and whatever goes wrong.

One engine without and one with speculation serve all tests, in this process; each test gives the second its
own drafters and policy. To be run by `make test-vllm`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm")

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")

import draftwise
from draftwise.core.drafts import Draft, Job
from draftwise.core.request import Request
from draftwise.core.roles import RoundRecord
from draftwise.data import spec_bench
from draftwise.hosts.follow import Follower
from draftwise.hosts.vllm.options import Options
from draftwise.models.load import load_model, resolve
from draftwise.policies.catalogue import method
from draftwise.policies.recorders.bandit import Bandit

NEW, BRIEF = 24, 12
BLOCKS = 20  # of 128 tokens: too few for eight texts of 380, so that some are put off
GROWING: dict[str, Any] = {"max_tokens": 140, "ignore_eos": True}


class Wrong:
    """Drafts what the target never writes."""

    def hint(self, request: Request) -> float:
        return 1.0

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft.chain([(job.request.tokens[-1] * 7 + 11) % 4096] * job.length) for job in jobs]

    def observe(self, request: Request, new: Sequence[int]) -> None: ...

    def close(self, request: Request) -> None: ...


class Likely(Wrong):
    """Drafts the same two tokens wherever the text is."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        return [Draft.chain(self.tokens[: job.length]) for job in jobs]


class Failing(Wrong):
    """Fails whenever it is asked."""

    def draft(self, jobs: Sequence[Job]) -> list[Draft]:
        raise RuntimeError("no luck")


class Plain(NamedTuple):
    """Prompts, and what vLLM writes after them by itself; `brief` after their ends alone."""

    prompts: list[list[int]]
    texts: list[list[int]]
    brief: list[list[int]]
    grown: list[list[int]]


def ends(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Short prompts, for many requests."""
    return [list(prompt[-100:]) for prompt in prompts]


def slices(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Eight prompts of 240 tokens."""
    every = [token for prompt in prompts for token in prompt]
    return [every[240 * k : 240 * (k + 1)] for k in range(8)]


def engine(target: str = "zoo:target", **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        resolve(target),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=8,
        max_model_len=1024,
        enable_prefix_caching=False,
        disable_log_stats=False,
        gpu_memory_utilization=0.3,  # vLLM starts only where that much of all memory is free
        num_gpu_blocks_override=BLOCKS,
        **options,
    )


def ids(llm: Any, count: int) -> list[list[int]]:
    tokenizer, prompts = llm.get_tokenizer(), [p.text for p in spec_bench()]
    found = []
    for text in prompts[:: len(prompts) // count][:count]:
        told = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        found.append(list(told["input_ids"] if hasattr(told, "keys") else told)[-900:])
    return found


def generate(
    llm: Any, prompts: Sequence[Sequence[int]], *, one: bool = False, **sampling: Any
) -> list[list[int]]:
    from vllm import SamplingParams

    asked = SamplingParams(**({"temperature": 0.0, "max_tokens": NEW} | sampling))
    batches = [[p] for p in prompts] if one else [prompts]
    outputs = [
        out
        for batch in batches
        for out in llm.generate([{"prompt_token_ids": list(p)} for p in batch], asked, use_tqdm=False)
    ]
    return [list(choice.token_ids) for out in outputs for choice in out.outputs]


@pytest.fixture(scope="module")
def plain() -> Plain:
    """Prompts, and what vLLM writes after them by itself."""
    from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found,unused-ignore]

    llm = engine()
    prompts = ids(llm, 16)
    texts = generate(llm, prompts)
    brief = generate(llm, ends(prompts), max_tokens=BRIEF)
    grown = generate(llm, slices(prompts), **GROWING)
    del llm
    cleanup_dist_env_and_memory()
    return Plain(prompts, texts, brief, grown)


@pytest.fixture(scope="module")
def served(plain: Plain) -> Any:
    return engine(speculative_config=draftwise.vllm_config(drafters=["ngram", "suffix"], policy="auto"))


def proposer(llm: Any) -> Any:
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner.drafter


def use(llm: Any, drafters: Sequence[str], policy: str, **others: Any) -> Follower:
    """Give the engine these drafters and this policy from now on."""
    host = proposer(llm)
    options = Options(drafters=tuple(drafters) or ("ngram",), policy=policy if drafters else "static-2")
    follower: Follower = host.follow(options)
    if others:
        team = {name: follower.pool.drafters[name] for name in drafters} | others
        follower = Follower(team, method(policy, list(team)), vocab_size=host.vocab_size)
    host.follower.close()
    host.follower = host._reporter.follower = follower
    return follower


@pytest.mark.parametrize("one", [True, False], ids=["concurrency 1", "concurrency 8"])
@pytest.mark.parametrize("name", ["ngram", "suffix", "zoo:general", "all"])
def test_the_text_is_vllms_own(served: Any, plain: Plain, name: str, one: bool) -> None:
    prompts, texts, *_ = plain
    names = ["ngram", "suffix", "zoo:general", "zoo:code"] if name == "all" else [name]
    follower = use(served, names, "random" if name == "all" else "static-5")
    assert generate(served, prompts, one=one) == texts
    assert all(follower.totals()["drafters"][n]["num_draft_tokens"] > 10 for n in names)


@pytest.mark.parametrize("policy", ["auto", "metasd-ucb", "hedgespec", "tapout-seq-ucb1?drafter=zoo:general"])
def test_policies_of_the_catalogue_run_and_change_no_text(served: Any, plain: Plain, policy: str) -> None:
    prompts, texts, *_ = plain
    follower = use(served, ["ngram", "suffix", "zoo:general"], policy)
    assert generate(served, prompts) == texts
    assert follower.totals()["num_rounds"] > 50 and not any(follower.pool.faults.values())


def test_requests_are_put_off_and_resumed(served: Any, plain: Plain) -> None:
    follower = use(served, ["ngram", "zoo:general"], "random")
    before = preemptions(served)
    assert generate(served, slices(plain.prompts), **GROWING) == plain.grown
    assert preemptions(served) > before
    assert follower.tally.tokens > 8 * 100


def preemptions(llm: Any) -> int:
    return sum(int(m.value) for m in llm.get_metrics() if m.name == "vllm:num_preemptions")


def test_drafters_that_fail_or_are_always_wrong_change_no_text(served: Any, plain: Plain) -> None:
    prompts, texts, *_ = plain
    follower = use(served, ["ngram"], "random", wrong=Wrong(), failing=Failing())
    assert generate(served, prompts) == texts
    told = follower.totals()["drafters"]
    assert told["failing"]["num_faults"] == 3 and told["failing"]["num_drafts"] == 0
    assert told["wrong"]["num_draft_tokens"] > 50 and told["wrong"]["num_accepted_tokens"] == 0


def test_random_aborts_lose_nothing_and_leave_nothing_behind(served: Any, plain: Plain) -> None:
    """200 requests, some aborted before their first token, some half-way, some when they have ended."""
    from vllm import SamplingParams

    prompts, count = ends(plain.prompts), 200
    follower = use(served, ["ngram", "suffix", "zoo:general"], "random")
    serving, rng = served.llm_engine, random.Random(5)
    greedy = SamplingParams(temperature=0.0, max_tokens=BRIEF)
    for k in range(count):
        serving.add_request(str(k), {"prompt_token_ids": prompts[k % len(prompts)]}, greedy)
    finished, partial, aborted = dict[str, list[int]](), dict[str, list[int]](), set[str]()
    while serving.has_unfinished_requests():
        for out in serving.step():
            (finished if out.finished else partial)[out.request_id] = list(out.outputs[0].token_ids)
        if rng.random() < 0.5:
            flying = [k for k in partial if k not in finished | dict.fromkeys(aborted)]
            gone = rng.choice(flying if flying and rng.random() < 0.7 else list(map(str, range(count))))
            serving.abort_request([gone])
            aborted.add(gone)
    generate(served, prompts[:1], max_tokens=1)  # the engine's news of the last
    whole = {str(k): plain.brief[k % len(prompts)] for k in range(count)}
    assert finished.keys() | aborted == whole.keys()
    assert [k for k, text in finished.items() if text != whole[k]] == []
    assert [k for k, text in partial.items() if text != whole[k][: len(text)]] == []
    halfway = [k for k in partial if k not in finished]
    assert len(finished) > 80 and len(halfway) > 10 and not aborted.isdisjoint(finished)
    suffix: Any = follower.pool.drafters["suffix"]
    models: Any = follower.pool.drafters["zoo:general"]
    assert not follower.open and not models.cached and not suffix.texts
    assert not follower.pool._read and not follower._keys and not follower._rounds


def test_an_engine_that_starts_again_goes_on_from_what_it_had_learnt(plain: Plain, tmp_path: Path) -> None:
    """Two engines after one another, each in a process of its own, that share a state file."""
    file, out = tmp_path / "state.v1.json", tmp_path / "told.json"
    config = draftwise.vllm_config(drafters=["ngram", "suffix"], policy="ucb1?length=3", state=file)
    learnt = 0.0
    for part in (slice(0, 8), slice(8, 16)):
        asked = json.dumps({"config": config, "prompts": plain.prompts[part], "out": str(out)})
        subprocess.run([sys.executable, __file__, asked], check=True, cwd=tmp_path)
        told = json.loads(out.read_text())
        assert told["texts"] == plain.texts[part]
        assert told["known"] == learnt
        learnt = sum(json.loads(file.read_text())["numbers"]["shared"]["pulls"])
        rounds = told["totals"]["num_rounds"]  # less those that say nothing, as where a text had no room left
        assert 0.9 * rounds <= learnt - told["known"] <= rounds > 50


def write_once(config: dict[str, Any], prompts: Sequence[Sequence[int]], out: str) -> None:
    """What an engine knows when it starts, and what it writes until it ends, to a file."""
    from draftwise.hosts.vllm import totals

    llm = engine(speculative_config=config)
    known = sum(proposer(llm).follower.policy.shared.pulls)
    texts = generate(llm, prompts)
    Path(out).write_text(json.dumps({"known": known, "texts": texts, "totals": totals(llm)}))


def test_sampled_pairs_of_tokens_have_the_targets_law(served: Any, plain: Plain) -> None:
    """The second and third token, whose distribution is computed by Transformers: drafted well, and badly."""
    prompt = max((p for p in plain.prompts if len(p) < 80), key=len)
    n, top = 500, 0.5
    distribution = pairs(prompt, top)
    assert sum(distribution.values()) > 0.98
    ((most_likely, _),) = distribution.most_common(1)
    for others in ({"good": Likely(most_likely)}, {"good": Likely(most_likely), "wrong": Wrong()}):
        follower = use(served, [], "random?length=2", **others)
        texts = generate(served, [prompt] * n, temperature=1.0, top_p=top, max_tokens=4, ignore_eos=True)
        told = follower.totals()["drafters"]
        assert told["good"]["num_accepted_tokens"] > n // 20, told
        check_pairs(texts, distribution)


def check_pairs(texts: Sequence[Sequence[int]], distribution: Counter[tuple[int, int]]) -> None:
    """See that the second and third tokens of the texts have this distribution."""
    from scipy.stats import chi2

    seen, n = Counter((text[1], text[2]) for text in texts), len(texts)
    often = [pair for pair, p in distribution.items() if n * p >= 5]
    assert len(often) > 6
    cells = [(seen[pair], n * distribution[pair]) for pair in often]
    cells.append((n - sum(a for a, _ in cells), n - sum(b for _, b in cells)))
    assert chi2.sf(sum((a - b) ** 2 / b for a, b in cells), len(cells) - 1) > 1e-4, cells


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_block_divergence_reads_the_targets_own_law(
    served: Any, plain: Plain, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every drafted token counts its raw probability, which Transformers computes here, accepted or not."""
    import torch

    prompt = max((p for p in plain.prompts if len(p) < 80), key=len)
    ((most_likely, _),) = pairs(prompt, 0.5).most_common(1)
    use(served, [], "metasd-ucb?length=2", good=Likely(most_likely), wrong=Wrong())
    seen: list[tuple[list[int], list[int], tuple[float, ...]]] = []
    add = Bandit.add

    def spy(self: Bandit, batch: Sequence[RoundRecord], graders: Any) -> Any:
        for one in batch:
            before = one.request.tokens[: len(one.request.tokens) - len(one.tokens)]
            seen.append((before, list(one.draft.tokens), one.outcome.overlaps))
        return add(self, batch, graders)

    monkeypatch.setattr(Bandit, "add", spy)
    generate(served, [prompt] * 8, temperature=temperature, max_tokens=8, ignore_eos=True)
    model, checked = load_model("zoo:target"), list[float]()
    for before, drafted, overlaps in seen:
        if drafted:
            with torch.inference_mode():
                rows = model(torch.tensor([[*before, *drafted]])).logits[0, len(before) - 1 : -1]
            distribution = rows.float().softmax(-1)
            wanted = [float(distribution[k, token]) for k, token in enumerate(drafted)]
            assert list(overlaps) == pytest.approx(wanted, abs=1e-3)
            checked += wanted
    assert len(checked) > 20 and any(0.05 < p < 0.95 for p in checked)


def pairs(prompt: Sequence[int], top: float, least: float = 3e-5) -> Counter[tuple[int, int]]:
    """The probability of every second and third token, each drawn from the fewest that have `top` of the
    mass; texts less likely than `least` are left out."""
    import torch

    model = load_model("zoo:target")
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    with torch.inference_mode():
        for _ in range(3):
            longer = {}
            for some in batched(list(texts), 64):
                rows = model(torch.tensor([[*prompt, *text] for text in some])).logits[:, -1].float()
                for text, row in zip(some, rows.softmax(-1), strict=True):
                    mass, tokens = row.sort(descending=True)
                    kept = int((mass.cumsum(0) - mass < top).sum())
                    chances = mass[:kept] / mass[:kept].sum()
                    for token, p in zip(tokens[:kept].tolist(), chances.tolist(), strict=True):
                        if texts[text] * p > least:
                            longer[(*text, token)] = texts[text] * p
            texts = longer
    distribution: Counter[tuple[int, int]] = Counter()
    for (_, second, third), p in texts.items():
        distribution[second, third] += p  # type: ignore[assignment]
    return distribution


def batched(items: Sequence[tuple[int, ...]], size: int) -> list[Sequence[tuple[int, ...]]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


if __name__ == "__main__":
    write_once(**json.loads(sys.argv[1]))
