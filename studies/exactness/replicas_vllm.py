"""Two vLLM servers that learn separately, and two that start from the merged state of both.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one). Each replica has its own port, core and
state file, and answers half of the prompts. Both stop, `draftwise merge` adds up their state files, and two
new replicas start from the sum and answer each other's half. The exit status is 1 if an answer differs, or if
learned state is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

import draftwise
from draftwise.models.load import resolve
from studies.common.command import command, listed, start
from studies.common.prompts import spread

PAGE = "docs/how-to/vllm.md"


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default="ngram,suffix", help="with commas between them")
    parser.add_argument("--policy", default="ucb1", help="one that counts how often it played each arm")
    parser.add_argument("--prompts", type=int, default=12, help="of both replicas together")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument(
        "--port", type=int, default=8001, help="of the first replica; the second has the next"
    )
    parser.add_argument("--folder", type=Path, default=Path("replicas"), help="for state files and logs")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    files = [options.folder / "a.json", options.folder / "b.json"]
    merged = options.folder / "merged.json"
    for old in (*files, merged):
        old.unlink(missing_ok=True)
    prompts = spread(options.prompts)
    halves = [prompts[0::2], prompts[1::2]]

    first = life(options, files, halves)
    apart = [played(file) for file in files]
    draftwise_command = Path(sys.executable).with_name("draftwise")
    subprocess.run([draftwise_command, "merge", *files, "--out", merged], check=True)
    together = played(merged)
    for file in files:
        shutil.copy(merged, file)
    second = life(options, files, halves[::-1])
    after = [played(file) for file in files]

    print(f"apart {apart}, merged {together}, after a second life {after}")
    print(f"{sum(map(len, first))} answers in each life, the same: {first == second[::-1]}")
    return int(first != second[::-1] or together != sum(apart) or min(after) <= together)


class Replica(NamedTuple):
    """A server with Draftwise inside, at an address."""

    url: str
    server: subprocess.Popen[bytes]
    log: Path


def life(options: Namespace, files: Sequence[Path], halves: Sequence[Sequence[str]]) -> list[list[str]]:
    """The answers of two replicas, one list for each."""
    with replica(options, 0, files[0]) as a, replica(options, 1, files[1]) as b:
        for one in (a, b):
            wait(one)
        return [[answer(one, options, p) for p in half] for one, half in zip((a, b), halves, strict=True)]


@contextmanager
def replica(options: Namespace, number: int, file: Path) -> Iterator[Replica]:
    """A server from its start to its end."""
    config = draftwise.vllm_config(drafters=options.drafters, policy=options.policy, state=file.resolve())
    port, core, path = options.port + number, number % (os.cpu_count() or 1), file.with_suffix(".log")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", resolve(options.target), "--served-model-name", "target", "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--gpu-memory-utilization", "0.3"]  # on a CPU: of all memory, to be free when it starts
    command += ["--shutdown-timeout", "10"]  # seconds; without them vLLM kills its workers at once
    command += ["--speculative-config", json.dumps(config)]
    own = {"VLLM_CPU_OMP_THREADS_BIND": str(core), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with path.open("a") as log:
        server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
        try:
            yield Replica(f"http://127.0.0.1:{port}", server, path)
        finally:
            server.terminate()
            server.wait()


def wait(one: Replica) -> None:
    """Wait until a server answers."""
    print(f"waiting for {one.url}", file=sys.stderr, flush=True)
    while True:
        try:
            urlopen(f"{one.url}/health").close()
            return
        except URLError:
            if one.server.poll() is not None:
                raise SystemExit(
                    f"{one.url} has ended with status {one.server.returncode}: see {one.log}"
                ) from None
            time.sleep(1)


def answer(one: Replica, options: Namespace, prompt: str) -> str:
    """A server's greedy continuation of the end of a prompt."""
    asked = {"model": "target", "prompt": prompt[-400:], "max_tokens": options.max_new_tokens}
    body = json.dumps(asked | {"temperature": 0.0}).encode()
    with urlopen(Request(f"{one.url}/v1/completions", body, {"Content-Type": "application/json"})) as told:
        return str(json.load(told)["choices"][0]["text"])


def played(file: Path) -> int:
    """The number of rounds in a state file."""
    pulls: list[float] = json.loads(file.read_text())["numbers"]["shared"]["pulls"]
    return round(sum(pulls))


if __name__ == "__main__":
    start(main)
