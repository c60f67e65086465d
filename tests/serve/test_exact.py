"""Under load every text is the target's own, and its distribution is the target's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from draftwise import Decoder, method
from draftwise.core.sampling import Sampling
from draftwise.models.load import load_model
from draftwise.testing import exact, markov, p_value
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from studies.serve import exact as study
from studies.serve.local import serving
from tests.cli.conftest import Letters
from tests.effort import THOROUGH, drawn

from .conftest import Served

Start = Callable[..., Served]
P = np.random.default_rng(4).dirichlet([0.6] * 5, 5)
LONG = "The quick brown fox jumps over the lazy dog and runs away from the barn. " * 30


class Busy:
    """The bundled target with good drafters and a bad one, behind a server."""

    def __init__(self, url: str, service: Any) -> None:
        self.url, self.service, self.decoder = url, service, service.decoder

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of an answer, or of a refusal."""
        asked = {"model": study.MODEL} | body
        return httpx.post(f"{self.url}/v1/{path}", json=asked, timeout=None, trust_env=False).json()


@pytest.fixture(scope="module")
def busy() -> Iterator[Busy]:
    with serving(study.busy(), study.MODEL, batch=4) as (url, service):
        yield Busy(url, service)


def test_texts_of_a_busy_server_are_those_of_a_single_client() -> None:
    n, clients = (1000, 32) if THOROUGH else (8, 4)
    counts = study.compare(n, clients=clients, batch=4, seed=1, longest=34 if THOROUGH else 6)
    assert counts["different"] == 0 and counts["same"] > n / 2


def test_a_difference_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study.Alone, "text", lambda self, body: ("another text", "length"))
    assert study.compare(1, clients=1, batch=1, seed=1, longest=2)["different"] > 0


@pytest.mark.parametrize("settings", [{}, {"top_k": 3, "temperature": 0.8}, {"frequency_penalty": 1.0}])
def test_sampled_texts_have_the_exact_law_under_load(serve: Start, settings: dict[str, Any]) -> None:
    n, law, wrong = drawn(1500), markov(P), markov(P[::-1])
    team = {"good": SimDrafter(law), "bad": SimDrafter(wrong)}
    target = SimTarget(law, len(P))
    policy = method("random?arms=drafters*lengths", list(team))
    server = serve(Decoder(target, team, policy, Letters(), seed=1), batch=4, queue=4096)
    asked = {"temperature": 1.0, "max_tokens": 3, "n": 25} | settings

    def texts(k: int) -> list[str]:
        more: Any = [{}, {"speculative": {"drafters": ["bad"]}}, {"seed": 1000 * k}, {"speculative": False}][
            k % 4
        ]
        found = server.complete([2, 0], **asked | more)
        return [choice["text"] for choice in found["choices"]]

    with ThreadPoolExecutor(4) as pool:
        found = Counter(
            tuple("abcde".index(letter) for letter in text)
            for some in pool.map(texts, range(n // 25))
            for text in some
        )
    expected = exact(law, [2, 0], len(P), 3, Sampling(**{"temperature": 1.0} | settings))
    assert p_value(found, expected) > 1e-4


def test_a_grammar_holds_with_drafts_and_without(busy: Busy) -> None:
    asked = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 60, "n": 2, "temperature": 0.0}
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": study.SCHEMA}}
    answers = [
        busy.post("chat/completions", **asked, response_format=form, speculative=speculative)
        for speculative in (True, False)
    ]
    said = {choice["message"]["content"] for answer in answers for choice in answer["choices"]}
    (found,) = map(json.loads, said)
    assert found["name"] in ("Ann", "Bob", "Anna") and type(found["age"]) is int
    assert set(found) == {"name", "age", "ok"}


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"json": {"enum": ["a", "b"]}}}, '"[ab]"'),
    ],
    ids=["regex", "schema"],
)
def test_a_form_ends_the_text_although_eos_is_ignored(busy: Busy, form: dict[str, Any], fits: str) -> None:
    (choice,) = busy.post("completions", prompt="Once", max_tokens=40, ignore_eos=True, **form)["choices"]
    assert re.fullmatch(fits, choice["text"]) and choice["finish_reason"] == "stop"


def test_prompt_scores_are_the_models_own(busy: Busy) -> None:
    ids = busy.decoder.encode(LONG, chat=False)[:150]
    found = [score for piece in busy.decoder.loop.score(ids, 3) for score in piece]
    with torch.inference_mode():
        logits = load_model(study.MODEL, dtype="float32")(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(logits[k, token]) for k, token in enumerate(ids[1:])]
    np.testing.assert_allclose([score.logprob for score in found], expected, atol=1e-3)
    assert [score.tops[0][0] for score in found] == logits[:-1].argmax(-1).tolist()


def test_a_common_beginning_is_read_once(busy: Busy) -> None:
    system = {"role": "system", "content": LONG[:1000]}
    said, cached = [], []
    for n, question in ((1, "Who jumps?"), (2, "Where is the barn?"), (1, "Where is the barn?")):
        asked = [system, {"role": "user", "content": question}]
        answer = busy.post("chat/completions", messages=asked, max_tokens=6, temperature=0, n=n)
        said.append((asked, [choice["message"]["content"] for choice in answer["choices"]]))
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    prompt = answer["usage"]["prompt_tokens"]
    assert cached[0] < 20 and prompt - 30 < cached[1] <= cached[2] < prompt
    for asked, texts in said:
        assert set(texts) == {busy.decoder.generate(asked, max_new_tokens=6, temperature=0.0).text}
    page = httpx.get(f"{busy.url}/metrics", trust_env=False).text
    hits = next(line for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_total"))
    assert float(hits.split()[-1]) >= 2 * cached[1] + cached[2]
