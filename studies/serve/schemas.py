"""Answers in the JSON schemas of a public suite, with speculation and without: they fit, and they are equal.

The suite is a folder of files that are a schema each, such as `data/Glaiveai2K` of JSONSchemaBench. Each
schema is asked for twice, greedy, from a server of the bundled models with a bad drafter among its drafters.
Counted are the schemas with answers that fit (`valid`), do not fit, are cut by the number of tokens or are
refused, and those whose two answers differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jsonschema

from draftwise.serve.grammar import MAX_SOURCE
from studies.common.command import command, progress, start
from studies.serve.exact import MODEL, busy
from studies.serve.local import serving

PAGE = "docs/how-to/serve.md"
MOST = 200  # tokens of an answer


def schemas(folder: Path, n: int) -> Iterator[tuple[str, Any]]:
    """`n` schemas of a folder, drawn, with their names."""
    files = sorted(folder.rglob("*.json"))
    for file in Random(0).sample(files, len(files)):
        if not n:
            return
        try:
            schema = json.loads(file.read_text())
            jsonschema.validators.validator_for(schema).check_schema(schema)
        except (ValueError, jsonschema.SchemaError):
            continue
        if isinstance(schema, dict) and len(json.dumps(schema)) <= MAX_SOURCE:
            n -= 1
            yield str(file.relative_to(folder)), schema


def asked(client: httpx.Client, schema: Any, speculative: bool) -> dict[str, Any]:
    """The answer to a request for a text of this schema."""
    form = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
    messages = [{"role": "user", "content": "Fill in the form."}]
    body = {"model": MODEL, "messages": messages, "temperature": 0.0, "max_tokens": MOST}
    body |= {"response_format": form, "speculative": speculative}
    answer: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()
    return answer


def judged(schema: Any, answers: list[dict[str, Any]]) -> set[str]:
    """Return the verdict on the two answers."""
    if any("error" in answer for answer in answers):
        return {"refused"} if all("error" in answer for answer in answers) else {"different"}
    choices = [answer["choices"][0] for answer in answers]
    texts = [(choice["message"]["content"], choice["finish_reason"]) for choice in choices]
    faults = {"same" if texts[0] == texts[1] else "different"}
    for text, reason in texts:
        if reason == "length":
            faults.add("cut")
            continue
        try:
            jsonschema.validators.validator_for(schema)(schema).validate(json.loads(text))
            faults.add("valid")
        except (ValueError, jsonschema.ValidationError):
            faults.add("invalid")
    return faults


def compare(folder: Path, n: int, *, clients: int) -> Counter[str]:
    """Ask for all; the counts."""
    counts, said = Counter[str](), progress(20)
    server = serving(busy(), MODEL, batch=clients)
    with server as (url, _), httpx.Client(base_url=url, timeout=None, trust_env=False) as client:

        def one(named: tuple[str, Any]) -> tuple[str, Any, list[dict[str, Any]]]:
            name, schema = named
            return name, schema, [asked(client, schema, speculative) for speculative in (True, False)]

        with ThreadPoolExecutor(clients) as pool:
            for name, schema, answers in pool.map(one, schemas(folder, n)):
                found = judged(schema, answers)
                counts.update(["schemas", *found])
                said("schemas", counts["schemas"], n)
                if found & {"different", "invalid", "refused"}:
                    told = [answer.get("error") or answer["choices"][0]["message"] for answer in answers]
                    print(json.dumps({"schema": name, "found": sorted(found), "answers": told})[:1000])
    return counts


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("suite", type=Path, help="folder of schemas")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    counts = compare(given.suite, given.schemas, clients=given.clients)
    print(json.dumps(dict(counts)))
    return int(bool(counts["different"] or counts["invalid"]))


if __name__ == "__main__":
    start(main)
