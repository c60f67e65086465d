"""Send a server bodies that are no requests: no status 500, no memory kept, and exact texts after them.

Valid bodies are changed: bytes flipped, dropped, doubled and put in; values, keys and places of their JSON
replaced by what breaks programs. Then Schemathesis makes requests from the server's own description. It
prints the numbers of answers by status, the errors among them, and the memory kept over the second half.
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import httpx

from draftwise import Decoder
from draftwise.models.load import load_tokenizer
from studies.common.command import command, progress, start
from studies.serve.local import counting, resident, serving

PAGE = "docs/how-to/serve.md"
MODEL = "m"
WINDOW = 64  # tokens of a text: what bodies ask for is soon written
SAID = [{"role": "user", "content": "ab"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b", None]}}, "required": ["a"]}
VALID: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "ab", "max_tokens": 5, "temperature": 0.0}),
    ("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 3, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "stream": True, "stop": ["x", "yz"]}),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 9, "logit_bias": {"5": 3.5, "7": -100}, "seed": 7}),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 9, "regex": "[a-c]{2,5}", "top_p": 0.5, "min_p": 0.1}),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 9, "grammar": 'root ::= "a" | "b" [0-9]+'}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 4, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 4, "tools": [TOOL], "tool_choice": "auto"}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 4, "response_format": {"type": "json_object"}}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, *SAID],
            "max_completion_tokens": 6,
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 4, "speculative": {"drafters": ["good"]}}),
    ("/v1/responses", {"input": "ab", "max_output_tokens": 4, "text": {"format": {"type": "text"}}}),
    ("/v1/responses", {"input": [{"role": "user", "content": "a"}], "max_output_tokens": 4, "stream": True}),
    ("/tokenize", {"prompt": "abc"}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
)
FORMS = {"regex", "grammar", "response_format"}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, [1] * 500),
    *("", "a", "\x00", "0", "\ud800", "\U0001f600" * 50, "a" * 5000, "]" * 300, "(a|b)*" * 40),
    *([], {}, [[]], [None], [{}], {"": ""}, {"a": {"a": []}}, [[0] * 3] * 200, ["x"] * 200),
    *({str(k): k for k in range(100)}, "../../etc/passwd"),
)
BYTES = (
    b"null",
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"[" * 1200,
    b"{}",
    b"\xff",
    b"\x00",
    b"9" * 5000,
    b"\\",
    b'"',
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a JSON value."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from paths(inner, (*at, key))


def replaced(body: dict[str, Any], draw: Random) -> bytes:
    """A body with something else at some places, or under another name."""
    body = copy.deepcopy(body)
    for _ in range(draw.choice((1, 1, 2, 4))):
        *before, last = draw.choice([path for path in paths(body) if path] or [("model",)])
        place: Any = body
        for key in before:
            place = place[key]
        if isinstance(place, dict) and draw.random() < 0.2:
            place[draw.choice(("", "a", "prompt", "messages", "n", "type"))] = place.pop(last, None)
        else:
            place[last] = copy.deepcopy(draw.choice(VALUES))
    return json.dumps(body).encode()


def spoilt(body: bytes, draw: Random) -> bytes:
    """A body with some bytes changed."""
    changed = bytearray(body)
    for _ in range(draw.choice((1, 2, 5, 20))):
        at, length = draw.randrange(len(changed) + 1), draw.choice((1, 2, 8))
        kind = draw.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + 3 * length]
        else:
            changed[at:at] = draw.choice(BYTES)
    return bytes(changed)


def bodies(n: int, seed: int, grammars: bool = True) -> Iterator[tuple[str, bytes]]:
    """`n` bodies that may be wrong, with their addresses."""
    draw = Random(seed)
    valid = [one for one in VALID if grammars or not FORMS & one[1].keys()]
    for _ in range(n):
        path, body = draw.choice(valid)
        body = {"model": MODEL} | body
        content = replaced(body, draw) if draw.random() < 0.6 else json.dumps(body).encode()
        yield path, content if draw.random() < 0.4 else spoilt(content, draw)


def wrong(answer: httpx.Response) -> str:
    """Return the fault of an answer, or an empty text."""
    if answer.status_code >= 500:
        return f"status {answer.status_code}"
    if answer.status_code < 400:
        return ""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return "no error in the shape of OpenAI's"
    return "" if message and "\n" not in message and len(message) < 600 else "no error in one line"


class Watch:
    """Counts answers, looks now and then whether a good one is still exact, and at the memory."""

    def __init__(self, client: httpx.Client, service: Any, n: int) -> None:
        self.client, self.service, self.n = client, service, n
        self.counts, self.errors, self.at, self.sizes = Counter[str](), list[str](), 0, list[int]()
        self.first = self.exact()

    def exact(self) -> str:
        """A text that never changes."""
        body = {"model": MODEL, "prompt": "ab", "max_tokens": 20, "temperature": 0.0}
        return str(self.client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    def add(self, path: str, body: bytes, answer: httpx.Response) -> None:
        """An answer."""
        self.counts[str(answer.status_code)] += 1
        if said := wrong(answer):
            self.errors.append(f"{said}: {path} {body[:300]!r} {answer.text[:300]}")
        self.at += 1
        if self.at % max(1, self.n // 20) == 0:
            if self.exact() != self.first:
                self.errors.append(f"another text after {self.at} bodies")
            self.sizes.append(resident())

    def told(self) -> dict[str, Any]:
        """The counts; `kept` is what was added to the memory over the second half, in bytes."""
        self.service.engine.abandon(list(self.service.engine.running))
        while self.service.engine.running or self.service.engine.waiting:
            time.sleep(0.01)
        half = self.sizes[len(self.sizes) // 2 :]
        open_ = len(self.service.decoder.loop.open)
        kept = half[-1] - half[0] if half else 0
        return {"answers": dict(self.counts), "errors": len(self.errors), "open": open_, "kept": kept}


def fuzz(
    n: int,
    seed: int,
    grammars: bool = True,
    decoder: Decoder | None = None,
    said: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:
    """Send `n` bodies, some with `grammars`, to a server of the decoder; the counts and the errors."""
    decoder = decoder or counting(load_tokenizer("zoo:target"))
    with (
        serving(decoder, MODEL, window=WINDOW) as (url, service),
        httpx.Client(base_url=url, timeout=None, trust_env=False) as client,
    ):
        watch = Watch(client, service, n)
        for k, (path, body) in enumerate(bodies(n, seed, grammars)):
            headers = {"content-type": "application/json"}
            watch.add(path, body, client.post(path, content=body, headers=headers))
            said("bodies", k + 1, n)
        return watch.told(), watch.errors


def described(examples: int) -> tuple[dict[str, Any], list[str]]:
    """Requests that Schemathesis makes from the description, right and wrong ones of each address."""
    import hypothesis
    import schemathesis

    counts, errors = Counter[str](), list[str]()
    with serving(counting(load_tokenizer("zoo:target")), MODEL, window=WINDOW) as (url, _):
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        settings = hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                try:
                    strategy = operation.as_strategy(generation_mode=mode)
                except Exception:  # nothing can be wrong with a request that takes nothing
                    continue

                @hypothesis.given(strategy)
                @settings
                def ask(case: Any) -> None:
                    answer = case.call(timeout=600)
                    counts[str(answer.status_code)] += 1
                    if answer.status_code >= 500:
                        errors.append(f"status {answer.status_code}: {case.as_curl_command()[:500]}")

                with suppress(hypothesis.errors.Unsatisfiable):  # likewise
                    ask()
    return {"answers": dict(counts), "errors": len(errors)}, errors


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=100, help="of Schemathesis for each address; 0: none")
    args = parser.parse_args()
    counts, errors = fuzz(args.bodies, 0, said=progress(1000))
    print(json.dumps({"fuzz": counts}))
    if args.examples:
        told, more = described(args.examples)
        print(json.dumps({"schemathesis": told}))
        errors += more
    for error in errors[:20]:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    start(main)
