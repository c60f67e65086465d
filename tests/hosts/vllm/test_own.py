"""vLLM's own proposers inside a real vLLM, as drafters of a policy: a draft model, and a good and a bad head.

One engine without drafts and one for each model, in this process. To be run by `make test-vllm`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm")

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0")

from draftwise.hosts.follow import Follower
from draftwise.hosts.vllm import vllm_arguments
from draftwise.hosts.vllm.options import Options
from studies.common import heads
from studies.common.vllm import ours

from .test_engine import GROWING, check_pairs, engine, generate, ids, pairs, preemptions, slices

HEADS = ("draft_model", "eagle", "eagle3")
MODELS = (*HEADS, "mtp")  # a head like EAGLE's to us: what takes long is not tried again with it
of_heads = pytest.mark.parametrize("served", HEADS, indirect=True)


def name_of(model: str, folder: Path) -> str:
    """The drafter's name; the head's weights are written to the folder."""
    if model == "draft_model":
        return "vllm:draft_model:zoo:general"
    if model == "mtp":
        return "vllm:mtp"
    write = heads.write_eagle if model == "eagle" else heads.write_random_eagle3
    return f"vllm:{model}:{write(folder / model)}"


class Texts(NamedTuple):
    """Prompts, what vLLM writes after them by itself, and longer texts of which some are put off."""

    prompts: list[list[int]]
    texts: list[list[int]]
    grown: list[list[int]]


def end(llm: Any) -> None:
    """Free what an engine has, before the next one starts in this process."""
    from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found,unused-ignore]

    del llm
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def plain() -> Texts:
    llm = engine()
    prompts = ids(llm, 16)
    texts = Texts(prompts, generate(llm, prompts), generate(llm, slices(prompts), **GROWING))
    end(llm)
    return texts


@pytest.fixture(scope="module", params=MODELS)
def served(request: Any, plain: Texts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    from vllm.platforms import current_platform  # type: ignore[import-not-found,unused-ignore]

    folder = tmp_path_factory.mktemp("heads")
    name = name_of(request.param, folder)
    target = str(heads.write_mimo(folder)) if request.param == "mtp" else "zoo:target"
    with pytest.MonkeyPatch.context() as patch:
        # The first engine has done it; once Numba has compiled the lookup, it fails on llvmlite's objects.
        register = "register_triton_kernel_overrides"
        patch.setattr(type(current_platform), register, lambda *_: None, raising=False)
        llm = engine(target, **vllm_arguments(drafters=[name, "ngram"], policy="static-5"))
    yield name, llm
    end(llm)


def use(llm: Any, drafters: Sequence[str], policy: str) -> Follower:
    """Give the engine these drafters and this policy from now on."""
    host = ours(llm)
    follower: Follower = host.follow(Options(drafters=tuple(drafters), policy=policy))
    host.follower.close()
    host.follower = host._reporter.follower = follower
    return follower


@pytest.mark.parametrize("one", [True, False], ids=["concurrency 1", "concurrency 8"])
def test_the_text_is_vllms_own(served: tuple[str, Any], plain: Texts, one: bool) -> None:
    name, llm = served
    calls = ours(llm).model.passes
    follower = use(llm, [name, "vllm:ngram?min=2", "suffix"], "random")
    assert generate(llm, plain.prompts, one=one) == plain.texts
    counts = follower.totals()
    assert counts["drafters"][name]["num_draft_tokens"] > 50 and not any(follower.pool.faults.values())
    assert ours(llm).model.passes - calls < counts["num_steps"]


def test_drafts_after_skipped_steps_are_those_of_one_that_read_all(
    served: tuple[str, Any], plain: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, llm = served
    model, drafts = ours(llm).model, list[dict[tuple[int, ...], tuple[int, ...]]]()
    draft = model.draft

    def spy(jobs: Any) -> Any:
        made = draft(jobs)
        drafts[-1] |= {tuple(j.request.tokens): d.tokens for j, d in zip(jobs, made, strict=True)}
        return made

    monkeypatch.setattr(model, "draft", spy)
    for names, policy in (([name], "static-3"), ([name, "ngram"], "random?length=3")):
        drafts.append({})
        use(llm, names, policy)
        generate(llm, plain.prompts)
    every, some = drafts
    both = every.keys() & some.keys()
    assert len(both) > 30 and len(some) < len(every)
    assert [text[-1] for text in both if every[text] != some[text]] == []


@of_heads
def test_requests_that_are_put_off_are_read_again(served: tuple[str, Any], plain: Texts) -> None:
    name, llm = served
    before = preemptions(llm)
    follower = use(llm, [name, "ngram"], "random")
    assert generate(llm, slices(plain.prompts), **GROWING) == plain.grown
    assert preemptions(llm) > before and not any(follower.pool.faults.values())


def test_auto_knows_what_it_costs_and_how_often_it_is_right(served: tuple[str, Any], plain: Texts) -> None:
    name, llm = served
    follower = use(llm, [name, "ngram"], "auto?length=5")  # no longer than the engine allows
    assert generate(llm, plain.prompts) == plain.texts
    policy: Any = follower.policy
    at = policy.drafters.index(name)
    assert policy.acceptance[at].seen > 10 and not any(follower.pool.faults.values())


@of_heads
def test_sampled_drafts_keep_their_probabilities(served: tuple[str, Any], plain: Texts) -> None:
    """The second and third token, whose distribution is computed by Transformers."""
    name, llm = served
    prompt, n, top = max((p for p in plain.prompts if len(p) < 80), key=len), 300, 0.5
    distribution, verified = pairs(prompt, top), record_distributions(llm)
    follower = use(llm, [name, "ngram"], "random?length=2")
    texts = generate(llm, [prompt] * n, temperature=1.0, top_p=top, max_tokens=4, ignore_eos=True)
    check_pairs(texts, distribution)
    assert follower.totals()["drafters"][name]["num_draft_tokens"] > n // 2
    assert verified, "vLLM's rejection sampler got the drafts' distributions"


def record_distributions(llm: Any) -> list[int]:
    """The numbers of drafted tokens that vLLM's rejection sampler gets with distributions, from now on."""
    counts: list[int] = []

    def record(module: Any, arguments: Any) -> None:
        if arguments[1] is not None:
            counts.append(len(arguments[1]))

    core = llm.llm_engine.engine_core.engine_core
    core.model_executor.driver_worker.worker.model_runner.rejection_sampler.register_forward_pre_hook(record)
    return counts
