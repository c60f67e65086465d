"""What the routes answer: texts, streams, log-probabilities, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from draftwise import __version__
from draftwise.core.arms import Arm, Decision
from draftwise.core.round import Round, Seconds
from draftwise.generation.output import Writer
from draftwise.generation.text import Piece, TokenTexts
from draftwise.serve.bodies import Responses
from draftwise.serve.generations import Event, TokenLog
from draftwise.serve.requests import ParsedRequest
from draftwise.serve.responses import ItemAnswer, as_chat
from draftwise.serve.tools import AnswerPart, Parser, new_call
from studies.serve.local import counting
from tests.cli.conftest import LETTERS, Letters
from tests.tiny_tokenizers import MAKERS

from .conftest import MODEL, Served, line, simulated


def events(server: Served, path: str, **body: Any) -> list[Any]:
    """The chunks of a stream, which must end as OpenAI's do."""
    asked = {"model": MODEL, "stream": True, "temperature": 0.0} | body
    with server.client.stream("POST", path, json=asked) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [text for text in answer.iter_lines() if text]
    assert all(text.startswith("data: ") for text in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(text.removeprefix("data: ")) for text in lines[:-1]]


def test_the_server_tells_what_it_is(server: Served) -> None:
    get = server.client.get
    (card,) = get("/v1/models").json()["data"]
    assert card == get(f"/v1/models/{MODEL}").json()
    assert (card["id"], card["max_model_len"]) == (MODEL, 400)
    assert get("/version").json() == {"version": __version__}
    assert get("/health").status_code == get("/ready").status_code == 200


def test_a_text_is_the_targets_own(server: Served) -> None:
    for n in (1, 7, 40):
        answer = server.complete("xab", max_tokens=n)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (line("b", n), "length")
        expected = {"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n}
        assert answer["usage"] == expected | {"prompt_tokens_details": {"cached_tokens": 0}}
    assert server.complete("ab", max_tokens=None)["usage"]["completion_tokens"] == 16  # as OpenAI has it


def test_a_stop_string_ends_the_text_before_it(server: Served) -> None:
    for stop, text in (("jk", "cdefghi"), (["zz", "gh"], "cdef"), (["c"], "")):
        for choice in (
            server.complete(stop=stop)["choices"][0],
            merged(events(server, "/v1/completions", prompt="ab", max_tokens=20, stop=stop)),
        ):
            assert (choice["text"], choice["finish_reason"]) == (text, "stop")


def merged(chunks: list[Any]) -> dict[str, Any]:
    """A stream's only choice as a whole answer would have it."""
    choices = [c for chunk in chunks for c in chunk["choices"]]
    text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    return {"text": text, "finish_reason": choices[-1]["finish_reason"]}


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_the_same_in_pieces(server: Served, n: int) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    whole = server.chat("ab", n=n, max_completion_tokens=20)
    options = {"include_usage": True}
    chunks = events(server, "/v1/chat/completions", messages=said, n=n, max_tokens=20, stream_options=options)
    *chunks, last = chunks
    assert last["usage"] == whole["usage"] and last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
    assert len(chunks) > 4 * n  # in pieces indeed


def test_several_prompts_and_several_texts_each(server: Served) -> None:
    tokens = [LETTERS.index(letter) for letter in "xy"]
    answer = server.complete(["ab", "d"], n=2, max_tokens=4)
    texts = [line("b", 4), line("b", 4), line("d", 4), line("d", 4)]
    assert [c["text"] for c in answer["choices"]] == texts
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3 and answer["metrics"] is None
    assert server.complete(tokens, max_tokens=3)["choices"][0]["text"] == line("y", 3)
    assert len(server.complete([tokens, tokens], max_tokens=3)["choices"]) == 2


def test_a_seed_repeats_a_sampled_text(server: Served) -> None:
    def said(seed: int | None) -> list[str]:
        body = {"temperature": 6.0, "seed": seed, "n": 3, "max_tokens": 30}
        return [c["text"] for c in server.complete("ab", **body)["choices"]]

    assert said(5) == said(5) and len(set(said(5))) == 3
    assert said(None) != said(None)


def test_texts_without_a_seed_have_nothing_in_common(server: Served) -> None:
    body = {"temperature": 6.0, "n": 2, "max_tokens": 30, "speculative": False}
    assert len({choice["text"] for choice in server.complete(["ab", "ab"], **body)["choices"]}) == 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_log_probabilities_are_those_of_the_raw_law(server: Served, path: str) -> None:
    raw = server.decoder.loop.target.distribution([1])  # type: ignore[attr-defined]
    first = math.log(math.exp(20.0) / (math.exp(20.0) + len(raw) - 1))
    settings: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 12, "seed": 1}
    if path == "/v1/completions":
        answer = server.complete(logprobs=2, **settings)["choices"][0]
        table = answer["logprobs"]
        assert "".join(table["tokens"]) == answer["text"]
        assert table["text_offset"] == list(range(12))
        assert table["token_logprobs"] == pytest.approx([first] * 12)
        assert [max(top, key=top.get) for top in table["top_logprobs"]] == list(answer["text"])
        assert all(len(top) == 2 for top in table["top_logprobs"])
    else:
        answer = server.chat(logprobs=True, top_logprobs=2, **settings)["choices"][0]
        content = answer["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == answer["message"]["content"]
        assert [bytes(entry["bytes"]).decode() for entry in content] == [e["token"] for e in content]
        assert [entry["logprob"] for entry in content] == pytest.approx([first] * 12)
        assert [e["top_logprobs"][0]["token"] for e in content] == [e["token"] for e in content]


def test_streamed_log_probabilities_go_with_their_text(server: Served) -> None:
    body = {"prompt": "ab", "max_tokens": 12, "logprobs": 0, "stop": ["jkx", "k"]}
    chunks = [c["choices"][0] for c in events(server, "/v1/completions", **body)]
    for chunk in chunks:
        assert "".join(chunk["logprobs"]["tokens"]) == chunk["text"]
    assert "".join(chunk["text"] for chunk in chunks) == "cdefghij"


def test_a_prompt_is_echoed_with_its_scores(server: Served) -> None:
    loop = server.decoder.loop
    for stream in (False, True):
        body = {"prompt": "abd", "echo": True, "logprobs": 1, "max_tokens": 0}
        if stream:
            (choice,) = [c["choices"][0] for c in events(server, "/v1/completions", **body)]
        else:
            choice = server.complete(**body)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("abd", "length")
        table = choice["logprobs"]
        assert table["tokens"] == ["a", "b", "d"] and table["text_offset"] == [0, 1, 2]
        assert table["token_logprobs"][0] is None and table["top_logprobs"][0] is None
        expected = [score.logprob for piece in loop.score([0, 1, 3]) for score in piece]
        assert table["token_logprobs"][1:] == pytest.approx(expected)
        assert expected[0] > -0.1 and expected[1] < -10
    assert server.complete("abd", echo=True, max_tokens=3)["choices"][0]["text"] == "abdefg"
    assert not loop.open


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_once_for_all_its_samples(
    server: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    loop, scored = server.decoder.loop, list[list[int]]()
    score = loop.score

    def counted(prompt: list[int], top: int) -> Any:
        scored.append(prompt)
        return score(prompt, top)

    monkeypatch.setattr(loop, "score", counted)
    body = {"prompt": ["abd", "bcd"], "n": 3, "echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        first: dict[int, Any] = {}
        for chunk in events(server, "/v1/completions", **body):
            choice = chunk["choices"][0]
            first.setdefault(choice["index"], choice)
        choices = [first[i] for i in range(6)]
    else:
        choices = server.complete(**body)["choices"]
    assert scored == [[0, 1, 3], [1, 2, 3]]
    tables = [choice["logprobs"]["token_logprobs"][:3] for choice in choices]
    assert tables[0] == tables[1] == tables[2] != tables[3] == tables[4] == tables[5]
    assert None not in tables[0][1:] and not loop.open


def test_penalties_are_those_of_plain_decoding(server: Served) -> None:
    free: dict[str, Any] = {"temperature": 5.0, "seed": 2}
    asked = free | {"presence_penalty": 1.0, "frequency_penalty": 2.0}
    alone = simulated("none").generate("ab", chat=False, max_new_tokens=60, eos=(), **asked).text

    def said(settings: dict[str, Any]) -> str:
        return str(server.complete("ab", max_tokens=60, ignore_eos=True, **settings)["choices"][0]["text"])

    assert said(asked) == alone != said(free)


@pytest.mark.parametrize("asked", [False, {"drafters": []}, {"max_length": 0}, {"policy": "none"}])
def test_a_request_may_go_without_drafts(server: Served, asked: Any) -> None:
    answer = server.complete(speculative=asked, max_tokens=25)
    assert answer["choices"][0]["text"] == line("b", 25)
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] == 0
    assert answer["metrics"]["draftwise"]["tokens_by_drafter"] == {"target": 25}


def test_a_request_may_fix_its_drafts(server: Served) -> None:
    """The policy neither decides nor learns."""
    before = server.decoder.loop.policy
    learnt: list[Any] = []
    learn, server.decoder.loop.barrier.learn = server.decoder.loop.barrier.learn, learnt.extend  # type: ignore[assignment, method-assign]
    try:
        for drafter, length in (("good", 3), ("bad", 2)):
            asked = {"policy": f"static-{length}?drafter={drafter}"}
            found = server.complete(speculative=asked, max_tokens=40)
            assert found["choices"][0]["text"] == line("b", 40)
            assert set(found["metrics"]["draftwise"]["rounds_by_arm"]) == {f"{drafter}:{length}"}
    finally:
        server.decoder.loop.barrier.learn = learn  # type: ignore[method-assign]
    assert not learnt and server.decoder.loop.policy is before


def test_a_request_may_bound_who_drafts_and_how_far(server: Served) -> None:
    for most in (1, 2):
        found = server.complete(speculative={"drafters": ["good"], "max_length": most}, max_tokens=60)[
            "metrics"
        ]
        assert set(found["draftwise"]["tokens_by_drafter"]) == {"good", "target"}
        assert found["speculative_decoding"]["num_spec_tokens"] == most
    assert server.complete(speculative=True)["choices"][0]["text"] == line("b", 20)


def test_the_metrics_of_a_text_add_up(server: Served) -> None:
    found = server.complete(max_tokens=80)["metrics"]
    told, own = found["speculative_decoding"], found["draftwise"]
    by_length = told["acceptance_histogram_by_draft_length"]
    assert (
        sum(map(sum, by_length.values())) == sum(told["acceptance_histogram"]) == told["num_spec_steps"] > 0
    )
    assert told["num_draft_tokens"] == sum(int(k) * sum(row) for k, row in by_length.items())
    accepted = sum(j * n for j, n in enumerate(told["acceptance_histogram"]))
    assert told["num_accepted_draft_tokens"] == accepted > 0
    assert told["mean_acceptance_length"] == 1 + accepted / told["num_spec_steps"]
    assert sum(own["tokens_by_drafter"].values()) == 80
    assert sum(own["rounds_by_arm"].values()) == own["rounds"]


def test_tokens_and_back(server: Served) -> None:
    found = server.ask("/tokenize", prompt="abz")
    assert found == {"count": 3, "max_model_len": 400, "tokens": [0, 1, 25]}
    assert server.ask("/detokenize", tokens=[0, 1, 25]) == {"prompt": "abz"}
    assert server.ask("/detokenize", tokens=[]) == {"prompt": ""}
    chat = server.ask("/tokenize", messages=[{"role": "user", "content": "ab"}])
    assert chat["tokens"] == [0, 1]


def test_the_texts_of_many_tokens_hold_up_no_other_client(
    serve: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, threads = serve(counting(tokenizer)), set[str]()
    text = TokenTexts.text

    def noted(self: TokenTexts, token: int) -> str:
        threads.add(current_thread().name)
        return text(self, token)

    monkeypatch.setattr(TokenTexts, "text", noted)
    found = server.ask("/tokenize", prompt="The fox", return_token_strs=True)
    assert "".join(found["token_strs"]) == "The fox" and len(found["tokens"]) == found["count"]
    assert all(name.startswith("draftwise-prompts") for name in threads) and threads


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/v1/models", "/"])
def test_head_is_get_without_a_body(server: Served, path: str) -> None:
    answer = server.client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


def test_addresses_that_are_not_there(server: Served) -> None:
    assert server.client.get("/nowhere").json()["error"]["message"] == "no such address '/nowhere'"
    assert server.client.delete("/v1/models").status_code == 405
    assert server.client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


# -- where the text of each token of an echoed prompt begins ---------------------------------------------

TEXT = "naïve 🙂🙂 数据 x</s> é"


def test_tokens_of_one_character_begin_where_it_does() -> None:
    made = MAKERS["byte-level"]()
    read = made(TEXT, return_offsets_mapping=True)
    begins = TokenTexts(made).offsets(read["input_ids"], TEXT)
    assert begins == [begin for begin, _ in read["offset_mapping"]]
    assert len(set(begins)) < len(begins)  # some characters have several tokens


@pytest.mark.parametrize(
    "name", sorted(MAKERS.keys() - {"suffixes"})
)  # whose spaces depend on the next token
def test_a_text_is_found_where_its_token_begins(name: str) -> None:
    made = MAKERS[name]()
    ids = made(TEXT)["input_ids"]
    text = made.decode(ids, clean_up_tokenization_spaces=False)
    names = TokenTexts(made)
    begins = names.offsets(ids, text)
    assert begins == sorted(begins)
    for token, begin in zip(ids, begins, strict=True):
        said = names.text(token).strip()
        assert "\ufffd" in said or text[begin:].lstrip().startswith(said)


def test_a_special_token_that_the_text_has_not_takes_no_place() -> None:
    made = MAKERS["llama"]()
    ids = [made.bos_token_id, *made("é x")["input_ids"]]
    begins = TokenTexts(made).offsets(ids, "é x")
    assert begins[0] == begins[1] == 0 and begins[-1] == 2


def test_an_echo_tells_where_its_tokens_begin(serve: Any, tokenizer: Any) -> None:
    text = "é🎉 Größe 你好"
    asked = {"echo": True, "logprobs": 1, "max_tokens": 2, "ignore_eos": True}
    choice = serve(counting(tokenizer)).complete(text, **asked)["choices"][0]
    offsets = [begin for begin, _ in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]]
    found = choice["logprobs"]["text_offset"]
    assert found[: len(offsets)] == offsets and found[len(offsets)] == len(text)
    assert choice["text"].startswith(text)


class Muted(Letters):
    """A tokenizer whose letter z gives no text."""

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return super().decode(tokens).replace("z", "")


@pytest.mark.parametrize(("text", "listed"), [("zazzbzz", "zazzb"), ("zzz", "")])
def test_which_tokens_are_listed_does_not_depend_on_the_rounds(text: str, listed: str) -> None:
    muted, ids = Muted(), tuple(map(LETTERS.index, text))
    for cuts in product((False, True), repeat=len(text) - 1):
        writer, log, start, tokens = Writer(muted, ()), TokenLog(muted), 0, list[int]()
        for end in [*(k for k, is_cut in enumerate(cuts, 1) if is_cut), len(text)]:
            new, done = ids[start:end], end == len(text)
            seconds, logprobs, start = Seconds(), (0.0,) * len(new), end
            round = Round(0, Decision(0), Arm("a", 9), 0, 0, new, 0, seconds, done, logprobs=logprobs)
            tokens += [entry.token for entry in log.add(round, writer.take(round))]
        assert "".join(LETTERS[token] for token in tokens) == listed, cuts


# -- the items of `/v1/responses` ------------------------------------------------------------------------


NAMES: Any = SimpleNamespace(count=len)  # a letter is a token
SCHEMA = {"type": "object", "not": {"required": ["b"]}}


@pytest.mark.parametrize("strict", [None, True, False])
def test_the_form_of_a_text_is_as_strict_as_it_says(strict: bool | None) -> None:
    form = {"type": "json_schema", "name": "one", "schema": SCHEMA, "strict": strict}
    body = Responses.model_validate({"model": "m", "input": "Hi", "text": {"format": form}})
    asked = as_chat(body).response_format
    assert asked is not None and asked.json_schema is not None
    assert asked.json_schema.strict is strict and asked.json_schema.schema_ == SCHEMA


@pytest.mark.parametrize("several", [None, True, False])
def test_without_parallel_calls_the_first_one_counts(several: bool | None) -> None:
    class Caller(Parser):
        def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
            return [new_call(name, {}) for name in text]

    body = Responses.model_validate({"input": "Hi", "parallel_tool_calls": several})
    asked = ParsedRequest(as_chat(body), [], make_parser=Caller)
    answer = ItemAnswer(asked, [SimpleNamespace(index=0)], "m", NAMES, request=body)
    for said, reason in (("ab", ""), ("c", "eos")):
        answer.chunks(Event(0, [Piece(said, "target")], finish_reason=reason))
    assert [item["name"] for item in answer.output] == (["a"] if several is False else ["a", "b", "c"])


def test_reasoning_is_an_item_of_its_own() -> None:
    class Thinker(Parser):
        def feed(self, text: str, *, last: bool) -> list[AnswerPart]:
            return [AnswerPart(reasoning=text)] if text.islower() else [AnswerPart(text)]

    body = Responses.model_validate({"model": "m", "input": "Hi"})
    asked = ParsedRequest(as_chat(body), [], make_parser=Thinker)
    stats, spec = SimpleNamespace(tokens=9), SimpleNamespace(prompt=[0] * 40)
    text = SimpleNamespace(index=0, cached_tokens=32, stats=stats, spec=spec)
    answer = ItemAnswer(asked, [text], "m", NAMES, request=body)
    told = []
    for said, reason in (("so ", ""), ("it is", ""), ("WELL", "eos")):
        pieces = [Piece(said, "target")]
        told += answer.chunks(Event(0, pieces, finish_reason=reason))
    kinds = [event["type"].removeprefix("response.") for event in told]
    opened, closed = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    thought = [*opened, *["reasoning_text.delta"] * 2, "reasoning_text.done", *closed]
    assert kinds == [*thought, *opened, "output_text.delta", "output_text.done", *closed]
    make: Any = TypeAdapter
    adapter = make(pytest.importorskip("openai.types.responses").ResponseStreamEvent)
    for event in told:
        assert adapter.validate_python(event).type == event["type"]
    thinking, message = answer.output
    assert (thinking["type"], thinking["content"][0]["text"]) == ("reasoning", "so it is")
    assert (message["type"], message["content"][0]["text"]) == ("message", "WELL")
    assert answer._item_usage() == {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 32},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": len("so it is")},
        "total_tokens": 49,
    }
    items = [{"role": "user", "content": "Hi"}, thinking, message, {"role": "user", "content": "And?"}]
    again = as_chat(Responses.model_validate({"model": "m", "input": items}))
    assert [one.content for one in again.messages] == ["Hi", "WELL", "And?"]
