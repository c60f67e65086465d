"""The library's front, on the bundled models."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Decoder, Piece, UserError, transformers_generate
from draftwise.cli import main
from draftwise.generation.text import decode
from draftwise.testing.distributions import markov
from draftwise.testing.drafter import SimDrafter
from tests.core.turns import watch_passes

PROMPT = "Translate German to English: Ein Hund läuft am Strand."
LONG = "Compose an engaging travel blog post about a recent trip to Hawaii."


def joined(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def own(model: Any, ids: list[int], n: int, **more: Any) -> list[int]:
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, do_sample=False, **more
    )
    return list(out[0, len(ids) :].tolist())


def test_the_text_is_the_models_own(decoder: Decoder, plain_model: Any) -> None:
    out = decoder.generate(PROMPT, max_new_tokens=48)
    assert out.token_ids == own(plain_model, decoder.encode(PROMPT), 48)
    assert out.text == decode(decoder.tokenizer, out.token_ids) == joined(out.pieces)
    assert out.stats.tokens == len(out.token_ids) and out.stats.rounds == len(out.rounds)
    assert sum(out.stats.pulls.values()) == out.stats.rounds
    assert out.stats.tokens_per_s > 0


def test_penalties_and_log_probabilities(decoder: Decoder, plain_model: Any) -> None:
    out = decoder.generate(LONG, max_new_tokens=40, repetition_penalty=1.3, logprobs=True)
    assert out.token_ids == own(plain_model, decoder.encode(LONG), 40, repetition_penalty=1.3)
    assert len(out.logprobs) == len(out.token_ids) and max(out.logprobs) <= 0.0


def test_a_stream_gives_the_same_text_and_may_be_left(decoder: Decoder) -> None:
    whole = decoder.generate(LONG, max_new_tokens=40)
    assert joined(decoder.stream(LONG, max_new_tokens=40)) == whole.text
    assert decoder.last.token_ids == whole.token_ids
    stream = decoder.stream(LONG, max_new_tokens=40)
    first = next(stream).text
    stream.close()
    assert whole.text.startswith(first) and not decoder.loop.open
    assert 0 < decoder.last.stats.tokens < 40


def test_samples_differ_and_a_seed_repeats_them(plain_model: Any, tokenizer: Any) -> None:
    def fresh(**options: Any) -> Decoder:
        return Decoder.from_pretrained(plain_model, tokenizer=tokenizer, **options)

    def texts(seed: int) -> list[list[int]]:
        decoder = fresh(drafters=["ngram"], policy="static-3")
        return [
            s.token_ids
            for s in decoder.generate(PROMPT, n=3, temperature=1.0, max_new_tokens=16, seed=seed).samples
        ]

    first = texts(4)
    assert len({tuple(t) for t in first}) == 3
    assert texts(4) == first != texts(5)
    plain = fresh(policy="none").generate(PROMPT, temperature=1.0, max_new_tokens=16, seed=4)
    assert plain.token_ids == first[0]


def test_many_prompts_are_one_batch(decoder: Decoder) -> None:
    prompts = [PROMPT, "What is 3 + 4?", "SELECT", "Summarize: It rained all day."]
    one = [decoder.generate(p, max_new_tokens=20).token_ids for p in prompts]
    assert [o.token_ids for o in decoder.generate_many(prompts, batch=3, max_new_tokens=20)] == one


def test_stop_strings_end_the_text_before_them_and_one_may_stand_alone(decoder: Decoder) -> None:
    whole = decoder.generate(LONG, max_new_tokens=60, eos=frozenset()).text
    out = decoder.generate(LONG, max_new_tokens=60, eos=(), stop=whole[40:45])
    assert out.text == whole[: whole.find(whole[40:45])] and out.finish_reason == "stop"
    assert joined(decoder.stream(LONG, max_new_tokens=60, eos=(), stop=whole[40:45])) == out.text
    (many,) = decoder.generate_many([LONG], max_new_tokens=60, eos=(), stop=[whole[40:45], "never there"])
    assert many.text == out.text


def test_a_criterion_and_stop_strings_end_a_text_where_the_first_of_them_does(decoder: Decoder) -> None:
    """A stop string once took the criterion's place."""
    at = len(decoder.encode(LONG))

    def tenth(tokens: list[int], start: int) -> int | None:
        return at + 10 - start if len(tokens) >= at + 10 else None

    settings: dict[str, Any] = {"max_new_tokens": 60, "eos": (), "ends": tenth}
    whole = decoder.generate(LONG, max_new_tokens=60, eos=())
    out = decoder.generate(LONG, stop="never there", **settings)
    assert out.token_ids == whole.token_ids[:10] and out.finish_reason == "stop"
    assert (
        decoder.generate(LONG, stop=whole.text[4:6], **settings).text == whole.text.split(whole.text[4:6])[0]
    )


def test_what_can_be_read_once_is_for_all_texts(decoder: Decoder) -> None:
    """A generator of stop strings or of processors was empty after the first of several texts."""

    def bans(ids: Any, scores: Any) -> Any:
        scores[:, :200] = -float("inf")
        return scores

    whole = decoder.generate(LONG, max_new_tokens=20, eos=()).text
    several: list[tuple[str, list[Any]]] = [
        ("stop", [whole[10:14]]),
        ("processors", [bans]),
        ("eos", [decoder.last.token_ids[7]]),
    ]
    for name, value in several:
        more: dict[str, Any] = {"max_new_tokens": 20, "eos": ()}
        wanted = decoder.generate(LONG, **more | {name: value}).text
        assert wanted != whole
        made = [
            *decoder.generate(LONG, n=2, **more | {name: iter(value)}).samples,
            *decoder.generate_many([LONG, LONG], **more | {name: iter(value)}),
        ]
        assert [text.text for text in made] == [wanted] * 4
        assert joined(decoder.stream(LONG, **more | {name: iter(value)})) == wanted
        chat = decoder.chat()
        assert joined(chat.send(LONG, **more | {name: iter(value)})) == wanted
        chat.close()


def test_a_tokenizer_may_be_a_name(plain_model: Any, decoder: Decoder) -> None:
    named = Decoder.from_pretrained(plain_model, tokenizer="zoo:target")
    assert named.generate(PROMPT, max_new_tokens=5).text == decoder.generate(PROMPT, max_new_tokens=5).text


def test_one_end_of_text_may_stand_alone(decoder: Decoder) -> None:
    whole = decoder.generate(LONG, max_new_tokens=20, eos=()).token_ids
    out = decoder.generate(LONG, max_new_tokens=20, eos=whole[7])
    assert out.token_ids == whole[: whole.index(whole[7]) + 1] and out.finish_reason == "eos"


def test_a_chat_reads_only_what_is_new(decoder: Decoder, plain_model: Any) -> None:
    rows = decoder.loop.target.runner  # type: ignore[attr-defined]
    read = watch_passes(rows)
    try:
        chat = decoder.chat()
        first = joined(
            chat.send(
                PROMPT + " " * 3 + "Bitte sehr genau und mit allen Einzelheiten." * 4, max_new_tokens=12
            )
        )
        request = chat._request
        assert request is not None and request.id in decoder.loop.parked
        held, read[:] = len(request.tokens), []
        second = joined(chat.send("Translate German to English: Die Katze schläft.", max_new_tokens=12))
    finally:
        del rows.forward
    prompt = request.tokens[: request.prompt_length]
    assert request.tokens[:held] == prompt[:held]
    assert read[0] <= request.prompt_length - held + 12 < held
    assert chat.last.token_ids == own(plain_model, prompt, 12)
    assert [m["content"] for m in chat.messages[1::2]] == [first, second]
    chat.close()
    assert not decoder.loop.parked and not chat.messages


def test_a_chat_turn_broken_off_is_read_anew(decoder: Decoder) -> None:
    chat = decoder.chat()
    stream = chat.send(LONG, max_new_tokens=50)
    next(stream)
    stream.close()
    assert not decoder.loop.parked and chat.messages[-1]["role"] == "assistant"
    assert joined(chat.send("Continue.", max_new_tokens=5)) == chat.last.text
    chat.close()


def test_a_refused_chat_message_changes_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder.loop.target, "max_length", 2048)  # as with learned positions
    chat = decoder.chat()
    first = joined(chat.send(PROMPT, max_new_tokens=8))
    refused: list[tuple[str, dict[str, Any]]] = [
        ("word " * 3000, {}),
        ("Continue.", {"temperature": -1.0}),
        (" ", {}),
    ]
    for text, settings in refused:
        with pytest.raises(UserError):
            next(chat.send(text, **settings))
        assert [m["content"] for m in chat.messages] == [PROMPT, first]
    assert joined(chat.send("Continue.", max_new_tokens=5)) == chat.last.text
    chat.close()
    assert not decoder.loop.parked and not decoder.loop.open


def test_a_chat_with_a_base_model_needs_no_template(decoder: Decoder, plain_model: Any) -> None:
    template, decoder.tokenizer.chat_template = decoder.tokenizer.chat_template, None
    try:
        chat = decoder.chat()
        for text in ("One and two are", "and then"):
            list(chat.send(text, max_new_tokens=8))
        request = chat._request
        assert request is not None
        assert chat.last.token_ids == own(plain_model, request.tokens[: request.prompt_length], 8)
        chat.close()
    finally:
        decoder.tokenizer.chat_template = template


LAYERS = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())  # which Python shows in several lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "zoo:nothing"}, "zoo:nothing"),
        ({"drafters": ["nothing"]}, "'nothing'"),
        *(({name: LAYERS}, "Sequential(") for name in ("target", "tokenizer", "drafters")),
        ({"drafters": [LAYERS]}, "Sequential("),
        ({"drafters": ["ngram", "ngram"]}, "repeated"),
        ({"drafters": ["ngram:here"]}, "no path"),
        ({"target": 5}, "5"),
        ({"state": 5}, "5"),
        ({"seed": "x"}, "'x'"),
        ({"device": None}, "device=None"),
        ({"tokenizer": 5}, "tokenizer=5"),
        ({"tokenizer": ["zoo:target"]}, "tokenizer=['zoo:target']"),
        ({"tokenizer": "nothing"}, "'nothing'"),
        ({"tokenizer": 5, "target": "zoo:general"}, "tokenizer=5"),
        ({"tokenizer": "nothing", "target": "zoo:general"}, "'nothing'"),
        ({"drafters": ["retrieval"]}, "retrieval:PATH"),
        ({"drafters": ["ngram?min=0"]}, "min"),
        ({"drafters": ["ngram?size=3"]}, "size"),
        ({"drafters": ["ngram?min=nan"]}, "nan"),
        ({"drafters": ["ngram?min"]}, "key=value"),
        ({"drafters": ["retrieval:/does/not/exist"]}, "/does/not/exist"),
        ({"policy": "best"}, "'best'"),
        ({"policy": "static-0", "drafters": ["ngram"]}, "length=0"),
        ({"policy": "static-3"}, "drafter"),
        ({"policy": "static-3?drafter=suffix", "drafters": ["ngram"]}, "suffix"),
        ({"policy": "ucb1?arms=everything", "drafters": ["ngram"]}, "everything"),
        ({"policy": "ucb1?arms=lengths&lengths=1,x", "drafters": ["ngram"]}, "1,x"),
        ({"policy": "ucb1?reward=joy", "drafters": ["ngram"]}, "joy"),
        ({"policy": "static-3?stop=sometimes", "drafters": ["ngram"]}, "sometimes"),
        ({"policy": "ucb1?strength=inf", "drafters": ["ngram"]}, "inf"),
    ],
)
def test_what_does_not_exist_is_named(
    plain_model: Any, tokenizer: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as error:
        Decoder.from_pretrained(**{"target": plain_model, "tokenizer": tokenizer} | options)
    assert said in str(error.value) and "\n" not in str(error.value)


class Branching(SimDrafter):
    branches = 2


@pytest.mark.parametrize(
    ("policy", "arm"), [("draft-all", "all:5x2"), ("static-3?drafter=Branching", "Branching:3")]
)
def test_trees_are_refused_where_passes_are_exact(
    plain_model: Any, tokenizer: Any, policy: str, arm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At assembly, in one line: else the first tree would end its text."""
    monkeypatch.setattr("draftwise.build.compile_runner", lambda *model, **options: None)
    drafters = ["ngram", Branching(markov(np.eye(4)))]
    with pytest.raises(UserError, match=f"exact=True reads no trees .* its arm {arm}: name") as error:
        Decoder.from_pretrained(
            plain_model, tokenizer=tokenizer, drafters=drafters, policy=policy, exact=True
        )
    assert "\n" not in str(error.value)
    ids = torch.tensor([[5, 6, 7]])
    hosted = transformers_generate(drafters=drafters, policy=policy, tokenizer=tokenizer, exact=True)
    with pytest.raises(UserError, match=arm):
        plain_model.generate(ids, max_new_tokens=2, custom_generate=hosted)


def test_a_policy_with_chains_too_drafts_these_where_passes_are_exact(
    plain_model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwise.build.compile_runner", lambda *model, **options: None)
    dec = Decoder.from_pretrained(
        plain_model, tokenizer=tokenizer, drafters=[plain_model], policy="auto", exact=True
    )
    assert any(arm.width > 1 for arm in dec.loop.policy.arms)
    (name,) = dec.loop.pool.drafters
    assert dec.loop.pool.drafts_siblings(name), "nothing is exact yet: its compilation was left out"
    dec.loop.target.runner.is_exact = True  # type: ignore[attr-defined]
    assert not dec.loop.pool.drafts_siblings(name)


def test_a_drafter_of_another_vocabulary_changes_no_word(decoder: Decoder, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast as Fast

    from tests.tiny import model

    folder = tmp_path / "stranger"
    model("llama", dtype=torch.float32).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(23)}, unk_token="w0"))
    tokenizer: Any = Fast
    tokenizer(tokenizer_object=words).save_pretrained(folder)
    stranger = Decoder.from_pretrained("zoo:target", drafters=[str(folder)], policy="static-2")
    own = decoder.generate("Ein Hund", max_new_tokens=12).token_ids
    assert stranger.generate("Ein Hund", max_new_tokens=12).token_ids == own


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([4096], {}, "4096"),
        ("x", {"temprature": 1.0}, "temprature"),
        ("x", {"n": 0}, "n=0"),
        ("x", {"n": 2.5}, "n=2.5"),
        (5, {}, "5"),
        (torch.tensor([[1.0]]), {}, "1.0"),
        ("x", {"stop": [""]}, "stop string"),
        ("x", {"stop": 5}, "stop string"),
        ("x", {"eos": 1 << 20}, "eos=1048576"),
        ("x", {"max_new_tokens": 5.0}, "max_new_tokens=5.0"),
        ("word " * 3000, {}, "2048"),
    ],
)
def test_bad_requests_are_named(
    decoder: Decoder, prompt: Any, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder.loop.target, "max_length", 2048)  # as with learned positions
    with pytest.raises(UserError, match=said):
        decoder.generate(prompt, **settings)
    assert not decoder.loop.open


def test_several_prompts_are_a_list(decoder: Decoder) -> None:
    wrong: Any
    for wrong in ("abc", 5, None):
        with pytest.raises(UserError, match="in a list"):
            decoder.generate_many(wrong)
    with pytest.raises(UserError, match=r"batch=1\.5"):
        decoder.generate_many(["x"], batch=1.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="message is empty"):
        list(decoder.chat().send(5))  # type: ignore[arg-type]


# -- cascades, which `auto` weighs without being asked for them -------------------------------------------


PARTS = ["zoo:sql", "zoo:general", "ngram", "suffix"]  # the first is bad at other domains
CASCADES = ["cascade:zoo:sql>ngram?match=1", "cascade:zoo:general>ngram?match=1"]


@pytest.mark.parametrize(
    ("drafters", "policy", "added"),
    [
        (PARTS, "auto", CASCADES),
        (PARTS, "", CASCADES),
        (PARTS, "ucb1", []),
        (["ngram", "suffix"], "auto", []),
        (["zoo:general"], "auto", []),
        (["zoo:general", "ngram", "cascade:zoo:general>ngram?match=2"], "auto", []),
        (["zoo:general?probe=no", "suffix"], "auto", ["cascade:zoo:general%3Fprobe=no>suffix?match=1"]),
    ],
)
def test_cascades_join_the_team_of_a_policy_that_weighs_them(
    drafters: list[str], policy: str, added: list[str]
) -> None:
    decoder = Decoder.from_pretrained("zoo:target", drafters=drafters, policy=policy)
    assert list(decoder.loop.pool.drafters) == [*drafters, *added]
    assert {arm.drafter for arm in decoder.loop.policy.arms} - {"none"} == {*drafters, *added}


def test_the_text_is_the_models_own_with_cascades(plain_model: Any) -> None:
    """With `cascades=0` they are weighed however short a pass is; one of the models is bad."""
    decoder = Decoder.from_pretrained("zoo:target", drafters=PARTS, policy="auto?cascades=0")
    for text in (LONG, "SELECT the names of all", "def add(a, b):"):
        out = decoder.generate(text, max_new_tokens=160)
        assert out.token_ids == own(plain_model, decoder.encode(text), 160)
    assert not any(decoder.loop.faults.values())


def test_files_of_teams_with_cascades_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the team: with several cascades, another one would be another policy."""
    files, team = [str(tmp_path / f"{n}.json") for n in "ab"], [*PARTS[:3], "zoo:math"]
    for file in files:
        decoder = Decoder.from_pretrained("zoo:target", drafters=team, state=file)
        decoder.generate("One two three", max_new_tokens=8)
    merged = tmp_path / "all.json"
    assert main(["merge", *files, "--out", str(merged)]) == 0, capsys.readouterr().err
    again = Decoder.from_pretrained("zoo:target", drafters=team, state=str(merged))
    assert list(json.loads(merged.read_text())["drafters"]) == list(again.loop.pool.drafters)
    assert again.generate("One two three", max_new_tokens=8).token_ids
