"""The router: scikit-learn's numbers without scikit-learn, live and in replay, and lossless."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from draftwise import Decoder
from draftwise.cli import main
from draftwise.core.arms import Arm, Context
from draftwise.core.loop import Loop
from draftwise.core.roles import Drafter
from draftwise.core.sampling import Sampling
from draftwise.data.rewording import TABLE, reword
from draftwise.drafters.lookup.ngram import NgramDrafter
from draftwise.errors import UserError
from draftwise.measure.trace import Replay, ReplayState, Trace, read_costs
from draftwise.policies.catalogue import method
from draftwise.policies.classifiers.routing import RoutedPolicy, Router, load, runs, save
from draftwise.policies.recorders.bandit import REWARDS, Bandit
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from draftwise.testing.target import SimTarget
from draftwise.train import router
from draftwise.train.settings import RouterRun
from tests.distributions import check_distribution, exact
from tests.exactness.test_exact_distribution import BAD, GOOD, LENGTH, PROMPT, P, V
from tests.train.world import silent


@pytest.fixture(scope="module")
def made(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router between the target's own copy for low letters and the random drafter for high ones."""
    out = tmp_path_factory.mktemp("router") / "made"
    pairs = (f"low={world / 'target'}", f"high={world / 'drafter'}")
    data, target = (str(world / "prompts.jsonl"),), str(world / "target")
    run = RouterRun(data=data, target=target, routes=pairs, held_out=8, licence="CC0-1.0")
    found = router.train(run, out, silent)
    assert found["after"] == {"accuracy": 1.0} and found["prompts"] == 16
    assert router.train(run, out, silent) == found
    return out


def test_the_numbers_are_scikit_learns(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    rng = Random(1)
    for names in (["a", "b"], ["a", "b", "c"]):
        texts = [[rng.randrange(9) + 5 * (i % len(names)) for _ in range(20)] for i in range(30)]
        labels = [names[i % len(names)] for i in range(30)]
        run = RouterRun(data=("x",), routes=("x=a", "y=b"), longest=2, terms=150)
        ours = router.fitted(run, texts, labels, "")
        words = TfidfVectorizer(analyzer=lambda ids: runs(ids, 2), sublinear_tf=True, max_features=150)
        theirs = LogisticRegression(C=10.0, max_iter=1000).fit(words.fit_transform(texts), labels)
        save(ours, tmp_path)
        again = load(tmp_path)
        for text in [*texts[:8], [99, 98], [3]]:
            wanted = theirs.decision_function(words.transform([text]))[0]
            scores = ours.scores(text)
            mine: Any = scores if len(names) == 3 else scores[1] - scores[0]  # one number for two classes
            assert mine == pytest.approx(wanted if len(names) == 2 else list(wanted))
            assert again.scores(text) == pytest.approx(scores, abs=1e-5)
            best = ours.drafters[int(np.argmax(scores))]
            assert best == theirs.predict(words.transform([text]))[0]


def test_live_it_picks_the_drafter_of_the_prompt(made: Path, world: Path) -> None:
    names = [str(world / "drafter"), str(world / "target"), "ngram"]
    target = str(world / "target")
    decoder = Decoder.from_pretrained(target, drafters=names, policy=f"router:{made}?length=3")
    plain = Decoder.from_pretrained(target, policy="none")
    for prompt, who in (("abcdefgh", 1), ("klmnopqrst", 0)):
        out = decoder.generate(prompt, max_new_tokens=20)
        assert {r.arm.drafter for r in out.rounds} == {names[who]}
        assert {r.arm.length for r in out.rounds} == {3}
        assert out.token_ids == plain.generate(prompt, max_new_tokens=20).token_ids
    policy = decoder.loop.policy
    assert isinstance(policy, RoutedPolicy) and not policy.routes  # a text that ended is forgotten


def test_in_replay_the_rounds_are_the_live_ones(made: Path, world: Path, tmp_path: Path) -> None:
    lines = [{"prompt": "abcdefgh"}, {"prompt": "klmnopqrst"}, {"prompt": "abdca"}]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = f"{world / 'drafter'},{world / 'target'}"
    words = ["--target", str(world / "target"), "--drafters", names, "--workload", str(tmp_path / "w.jsonl")]
    words += ["--max-new-tokens", "20", "--length", "5", "--out", str(tmp_path / "trace")]
    assert main(["trace", *words]) == 0
    trace = Trace(tmp_path / "trace")
    live = Decoder.from_pretrained(str(world / "target"), drafters=names.split(","), policy=f"router:{made}")
    policy, costs = f"router:{made}", read_costs(str(tmp_path / "trace" / "costs.json"))
    one = Replay(trace, method(policy, trace.team(policy)), costs)
    for line, recording in zip(lines, trace, strict=True):
        rounds = list(one.replay(ReplayState(recording)))
        out = live.generate(line["prompt"], max_new_tokens=20)
        both = [[(r.arm.drafter, r.drafted, r.accepted, r.tokens) for r in x] for x in (rounds, out.rounds)]
        assert both[0] == both[1]


def test_a_conversation_is_read_again_with_every_turn(made: Path, world: Path) -> None:
    loop = Decoder.from_pretrained(
        str(world / "target"),
        drafters=[str(world / "drafter"), str(world / "target")],
        policy=f"router:{made}",
    ).loop
    request = loop.add([3, 4, 5, 6], Sampling(max_new_tokens=3), keep=True)
    first = list(loop.policy.routes[request.id])  # type: ignore[attr-defined]
    while not request.done:
        loop.step()
    loop.extend(request, [15, 16, 17, 18, 19, 20], Sampling(max_new_tokens=3))
    assert loop.policy.routes[request.id] != first  # type: ignore[attr-defined]


def test_the_next_best_plays_where_the_best_is_out_of_use() -> None:
    policy = RoutedPolicy(tuple(Arm(n, 2) for n in "abc"), table())
    policy.open(4, [1, 2, 1])
    ranks = sorted(range(3), key=lambda i: -policy.routes[4][i])
    for out in range(3):
        gone = frozenset("abc"[i] for i in ranks[:out])
        assert policy.choose(Context(request=4, unavailable=gone), Random(0)).arm == ranks[out]
    policy.close(4)
    assert not policy.routes


def table(bias: float = 0.0) -> Router:
    """Token 1 speaks for a, token 2 for b; c is in the middle."""
    weight = np.array([[1.0, -1.0], [-1.0, 1.0], [0.1, 0.1]])
    return Router(("a", "b", "c"), {(1,): 0, (2,): 1}, np.ones(2), weight, np.array([0, bias, 0.0]))


@pytest.mark.parametrize("bias", [0.0, 9.0])  # with 9 the bad drafter plays
def test_any_route_keeps_the_distribution(bias: float) -> None:
    parts: dict[str, Drafter] = {
        "a": SimDrafter(markov(GOOD)),
        "b": SimDrafter(markov(BAD)),
        "c": NgramDrafter(),
    }
    arms = tuple(Arm(name, 3) for name in parts)
    recorder = Bandit(REWARDS["block-efficiency"](), 3, frozenset())
    loop = Loop(SimTarget(markov(P), V), parts, RoutedPolicy(arms, table(bias)), recorder)
    settings = Sampling(max_new_tokens=LENGTH, temperature=0.9)
    distribution = exact(markov(P), PROMPT, V, LENGTH, settings)
    check_distribution(loop, PROMPT, settings, 1500, distribution, batch=3)


def test_what_does_not_fit_is_refused(made: Path, world: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not among the drafters: give all of them"):
        method(f"router:{made}", ["ngram"])
    with pytest.raises(UserError, match="router takes a path: write router:PATH"):
        method("router", ["ngram"])
    with pytest.raises(UserError, match="ucb1 takes no path"):
        method("ucb1:there", ["ngram"])
    with pytest.raises(UserError, match="there is no such file"):
        method(f"router:{tmp_path}", ["ngram"])
    found = load(made)
    save(
        Router(("zoo:general", "ngram"), found.terms, found.idf, found.weight, found.bias, found.vocabulary),
        tmp_path,
    )
    with pytest.raises(UserError, match="trained for another tokenizer"):
        Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram"], policy=f"router:{tmp_path}")


@pytest.mark.parametrize("harm", ["cut", "version", "shape", "nan", "double"])
def test_a_damaged_router_is_refused(tmp_path: Path, harm: str) -> None:
    from safetensors.numpy import load_file, save_file

    save(table(), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors: dict[str, Any] = load_file(file)
    metadata = {"format": "draftwise-router", "version": "1", "drafters": '["a", "b", "c"]'}
    if harm == "version":
        metadata["version"] = "2"
    if harm == "shape":
        tensors["bias"] = tensors["bias"][:2].copy()
    if harm == "nan":
        tensors["idf"] = np.full(2, np.nan, np.float32)
    if harm == "double":
        tensors["terms"][:] = 1
    save_file(tensors, file, metadata=metadata)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match="cannot use the router") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_data_for_one_drafter_only(world: Path, tmp_path: Path) -> None:
    run = RouterRun(
        data=(str(world / "prompts.jsonl"),),
        target=str(world / "target"),
        routes=("low=a", "none=b"),
        held_out=4,
    )
    with pytest.raises(UserError, match="the data has prompts for a: name two or more"):
        router.train(run, tmp_path / "made", silent)


# -- other words ------------------------------------------------------------------------------------------

ASKED = {
    "Translate German to English: Es regnet.\n": "Es regnet.",
    "Translate French to English: Il pleut.": "Il pleut.",
    "Summarize: A long text.\nSummary:": "A long text.",
    "Summarize: A long text.": "A long text.",
    "Table columns: A, B\nQuestion: how many a are b\nSQL:": "how many a are b",
    "Database: advising\nQuestion: Can I take 611?\nSQL:": "Can I take 611?",
    "Context: It rained.\nIt was wet.\nQuestion: What fell?\nAnswer:": "What fell?",
    "Question: Ann has 3 pens.\nHow many?\nAnswer:": "Ann has 3 pens.\nHow many?",
    'def f(x):\n    """Twice."""\n': 'f(x):\n    """Twice."""',
}


@pytest.mark.parametrize("prompt", ASKED)
def test_other_words_ask_for_the_same(prompt: str) -> None:
    others = reword(prompt)
    assert len(others) == 3 and len({*others, prompt}) == 4
    for other in others:
        assert ASKED[prompt] in other and "{" not in other
        assert "Question:" not in other and not other.startswith(("Translate", "Summarize"))


def test_every_rule_of_the_table_is_tried() -> None:
    rules = json.loads(TABLE.read_text())
    assert len(rules) == len(ASKED) and len({rule["name"] for rule in rules}) == len(rules)
    assert reword("Compose a poem.") == [] and reword("") == []
