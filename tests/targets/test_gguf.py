"""A GGUF target writes what llama.cpp writes alone, token for token, whoever drafts, whatever the batch."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from draftwise.core.drafts import Draft, Job, Verdict
from draftwise.core.request import Request
from draftwise.core.sampling import Sampling
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.drafters.lookup.suffix import SuffixDrafter
from draftwise.drafters.neural.gguf import GgufDrafter
from draftwise.drafters.neural.gguf import gguf as drafter
from draftwise.errors import UserError
from draftwise.models.gguf import sequences
from draftwise.targets.gguf import PIECE, GgufTarget, gguf
from tests.core.turns import Stateless, decode_all, loop_with, written
from tests.gguf import FLOAT16, FLOAT32, Plain, bundled, tiny, watch_feeds
from tests.targets.test_hf import Oracle
from tests.ties import parting
from tests.tiny import VOCAB

N = 40


def prompts(n: int = 6) -> list[list[int]]:
    rng = Random(1)
    return [[rng.randrange(2, VOCAB) for _ in range(rng.choice((1, 3, 12, 30)))] for _ in range(n)]


def own(path: str, texts: list[list[int]], n: int = N) -> list[list[int]]:
    plain = Plain(path)
    return [plain.write(text, n) for text in texts]


class Noise(Stateless):
    """Drafts random tokens."""

    def __init__(self, vocab: int = VOCAB) -> None:
        self.random, self.vocab = Random(5), vocab

    def one(self, job: Job) -> Draft:
        return Draft.chain([self.random.randrange(self.vocab) for _ in range(job.length)])


def team(path: str, texts: list[list[int]], n: int = N) -> dict[str, Any]:
    truth = {tuple(p): text for p, text in zip(texts, own(path, texts, n), strict=True)}
    return {
        "oracle": Oracle(truth, 0.3),
        "noise": Noise(),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
    }


POLICIES = ["none", "static-5?drafter=oracle", "static-3?drafter=noise", "auto"]
POLICIES += ["random?arms=drafters*lengths&lengths=0,1,4,7", "tapout-seq-ucb1"]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_text_is_llama_cpps_own(policy: str, batch: int) -> None:
    """Requests join as others leave: there are more prompts than places in the batch."""
    path, texts = tiny(), prompts()
    loop = loop_with(gguf(path), team(path, texts), policy)
    assert written(loop, texts, N, batch) == own(path, texts)


def test_a_prompt_longer_than_a_pass_is_read_in_pieces() -> None:
    path = tiny()
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(n)] for i, n in enumerate((1300, 40, 513, 600))]
    for batch in (1, 4):
        loop = loop_with(gguf(path), team(path, texts, 20), "static-4?drafter=oracle")
        assert written(loop, texts, 20, batch) == own(path, texts, 20)


def test_the_memory_grows_with_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In cells and in sequences, while texts are being written; nothing of them is lost."""
    monkeypatch.setattr(sequences, "FIRST_CELLS", 512)
    path = tiny()
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(150)] for i in range(8)]
    texts.append(texts[0] * 4)
    target = gguf(path)
    assert (target.rows.context.cells, target.rows.context.sequences) == (512, 1)
    loop = loop_with(target, team(path, texts), "static-4?drafter=oracle")
    requests = [loop.add(texts[0], Sampling(max_new_tokens=N))]
    for _ in range(3):
        loop.step()
    assert 0 < requests[0].position < N
    requests += [loop.add(text, Sampling(max_new_tokens=N)) for text in texts[1:]]
    decode_all(loop)
    assert [r.tokens[r.prompt_length :] for r in requests] == own(path, texts)
    assert (target.rows.context.cells, target.rows.context.sequences) == (1024, 16)


def test_samples_of_one_prompt_read_it_once() -> None:
    target, prompt = gguf(tiny()), [Random(0).randrange(2, VOCAB) for _ in range(60)]
    fed = watch_feeds(target)
    loop = loop_with(target, {}, "none")
    for _ in range(4):
        loop.add(prompt, Sampling(max_new_tokens=20))
    loop.step()
    assert sum(fed) < 60 + 4 * 4
    while loop.open:
        rounds = loop.step()
    assert len(rounds) == 4
    requests = [loop.add(prompt, Sampling(max_new_tokens=20)) for _ in range(2)]
    decode_all(loop)
    assert [r.tokens[60:] for r in requests] == own(tiny(), [prompt] * 2, 20)


def test_a_long_prompt_is_read_between_the_rounds_of_others() -> None:
    """Target and drafter read a piece in each call; the texts are those of one request alone."""
    path, target = tiny(), gguf(tiny())
    made = drafter(path, VOCAB)
    assert isinstance(made, GgufDrafter)
    fed, others = watch_feeds(target), watch_feeds(made)
    loop = loop_with(target, {"gguf": made, "noise": Noise()}, "random?arms=drafters*lengths&lengths=0,1,4")
    texts = [[Random(i).randrange(2, VOCAB) for _ in range(n)] for i, n in enumerate((30, 1300))]
    requests = [loop.add(texts[0], Sampling(max_new_tokens=N))]
    loop.step()
    requests.append(loop.add(texts[1], Sampling(max_new_tokens=N)))
    pieces = 1
    while loop.read(requests[1]):
        pieces += 1
        assert fed[-1] <= PIECE
        loop.step([requests[0]])
    assert pieces >= 1300 // PIECE
    loop.step()
    drafted = sum(others)
    while loop.prepare():
        assert others[-1] <= PIECE
        loop.step()
    assert sum(others) - drafted > 1300 - PIECE
    fed.clear()
    decode_all(loop)
    assert max(fed) < 40, "only the rest was left to the next pass"
    assert [r.tokens[len(p) :] for r, p in zip(requests, texts, strict=True)] == own(path, texts)
    assert not any(loop.faults.values())


def test_what_is_committed_is_not_read_again() -> None:
    path, prompt = tiny(), prompts()[3]
    target = gguf(path)
    fed = watch_feeds(target)
    loop = loop_with(target, team(path, [prompt]), "static-5?drafter=oracle")
    rounds = list(loop.run([prompt], Sampling(max_new_tokens=N)))
    assert sum(fed) == len(prompt) - 1 + sum(1 + r.drafted for r in rounds)


def test_a_faulty_request_fails_alone() -> None:
    path, texts = tiny(), prompts(3)
    loop = loop_with(gguf(path), team(path, texts), "static-4?drafter=oracle")
    sound = [loop.add(text, Sampling(max_new_tokens=N)) for text in texts]
    loop.step()
    bad = loop.add([3, VOCAB + 5, 4], Sampling(max_new_tokens=N))
    errors = []
    while loop.open:
        errors += [(r.request, r.error) for r in loop.step() if r.error is not None]
    ((key, error),) = errors
    assert key == bad.id and "llama.cpp" in str(error)
    assert [r.tokens[len(p) :] for r, p in zip(sound, texts, strict=True)] == own(path, texts)


def check_uncommitted(path: str) -> tuple[GgufTarget, Request]:
    """A pass that was never committed leaves nothing: the next one says what llama.cpp says of the text."""
    target, plain = gguf(path), Plain(path)
    one = Request(0, [3, 4, 5, 6], 4, Sampling(), Random(0), Random(0))
    target.open(one)
    for drafted in ((7, 8, 9), (9, 9)):
        (scores,) = target.verify([(one, Draft.chain(drafted))])
        assert scores.choice(-1) == int(plain.after(one.tokens).argmax())
        assert scores.choice(1) == int(plain.after([*one.tokens, *drafted[:2]]).argmax())
    return target, one


def test_a_pass_that_was_never_committed_is_taken_back() -> None:
    target, one = check_uncommitted(tiny())
    target.commit([(one, Draft.chain((9, 9)), Verdict((), 7))])
    assert target.rows.cached_lengths[0] == 3


def test_a_tree_is_refused() -> None:
    target = gguf(tiny())
    one = Request(0, [3, 4], 2, Sampling(), Random(0), Random(0))
    target.open(one)
    with pytest.raises(UserError, match="tree"):
        target.verify([(one, Draft((5, 6), (-1, -1)))])


def test_a_window_sized_request_fills_the_window_and_no_more() -> None:
    target = gguf(tiny(), context=128)
    loop = loop_with(target, {"ngram": NgramDrafter()}, "static-6")
    long = loop.add([5, 6, 5, 6] * 30, Sampling(max_new_tokens=50))
    decode_all(loop)
    assert len(long.tokens) == 129 and long.finish_reason == "length", "the last one is never read"
    last = loop.add([5] * 128, Sampling(max_new_tokens=9))
    while loop.open:
        assert not any(round.error for round in loop.step())
    assert len(last.tokens) == 129
    with pytest.raises(UserError, match="128"):
        loop.add([5] * 129)


def test_the_default_window_is_the_models() -> None:
    assert gguf(tiny()).max_length == gguf(tiny()).window == 2048


def test_another_cache_is_refused() -> None:
    with pytest.raises(UserError, match="cache=f64: choose from auto, f32"):
        gguf(tiny(), cache="f64")


@pytest.mark.parametrize("cache", ["f32", "f16"])
def test_the_bundled_target(cache: str) -> None:
    """In float16, llama.cpp's default, a pass of several tokens rounds otherwise than one of one token: there
    texts may part where two logits nearly tie."""
    path = bundled("zoo:target")
    plain = Plain(path, cache={"f32": FLOAT32, "f16": FLOAT16}[cache])
    texts = [[Random(i).randrange(100, 4000) for _ in range(20 + 40 * i)] for i in range(4)]
    truth = [plain.write(text, 48) for text in texts]
    team: dict[str, Any] = {"noise": Noise(4096)}
    team["oracle"] = Oracle({tuple(p): t for p, t in zip(texts, truth, strict=True)}, 0.2)
    loop = loop_with(gguf(path, cache=cache), team, "random?arms=drafters*lengths&lengths=0,2,8")
    for mine, own, prompt in zip(written(loop, texts, 48, 2), truth, texts, strict=True):
        if mine != own:
            at = parting(mine, own)
            first, second = sorted(plain.after([*prompt, *own[:at]]).tolist())[:-3:-1]
            assert first - second < (1e-4 if cache == "f32" else 1e-2)
