"""Two replicas of vLLM that learn together: one is killed while they answer, and replaced.

Run it in an environment with vLLM (`scripts/setup-vllm` makes one). All name one state file. `--how` says
what they are: two servers, two ranks of vLLM's data parallelism, or two replicas of Ray Serve
(`pip install "ray[serve]"`, beside vLLM). A client sends the prompts over and over and repeats a request that
breaks off. Halfway one replica is killed, and another takes its place; ranks are restarted together. The exit
status is 1 if an answer is not plain vLLM's, or if more rounds were forgotten than a minute has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil

import draftwise
from draftwise.models.load import resolve
from studies.common.command import command, listed, start
from studies.common.texts import spread
from studies.common.vllm import settings

PAGE = "docs/how-to/cluster.md"
BROKEN = (OSError, HTTPError, URLError)
ROUNDS = "draftwise:spec_decode_num_rounds_total{"


def main() -> int:
    parser = command(__doc__, PAGE)
    parser.add_argument("--how", choices=sorted(HOW), default="servers")
    parser.add_argument("--target", default="zoo:target")
    parser.add_argument("--drafters", type=listed, default="ngram,suffix", help="with commas between them")
    parser.add_argument("--policy", default="ucb1", help="one that counts how often it played each arm")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument(
        "--seconds", type=float, default=180.0, help="of the run; a replica is killed halfway"
    )
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument(
        "--port", type=int, default=8001, help="of the first replica; the second has the next"
    )
    parser.add_argument("--folder", type=Path, default=Path("replicas"), help="for the state file and logs")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    options.file = (options.folder / f"{options.how}.json").resolve()
    options.file.unlink(missing_ok=True)
    prompts = [prompt[-400:] for prompt in spread(options.prompts)]

    with closing(Server(options, 0, {})) as plain:
        plain.wait()
        expected = [plain.ask(prompt) for prompt in prompts]
    with closing(HOW[options.how](options)) as replicas:
        seen = traffic(replicas, options, prompts, expected)
        rounds = replicas.rounds()
    learned = round(sum(json.loads(options.file.read_text())["numbers"]["shared"]["pulls"]))
    minute = 60.0 * rounds / options.seconds
    print(f"{options.how}: {seen['texts']} texts, {seen['wrong']} not plain vLLM's")
    print(f"{seen['repeated']} requests repeated, because their replica had gone")
    print(f"rounds: {rounds} decided, {minute:.0f} a minute; {rounds - learned} of them not in the file")
    return int(seen["wrong"] > 0 or rounds - learned > minute)


def traffic(
    replicas: Servers | Ray, options: Namespace, prompts: Sequence[str], expected: Sequence[str]
) -> Counter[str]:
    """Answer the prompts in turn for some seconds, and have a replica replaced meanwhile."""
    seen, end = Counter[str](), time.monotonic() + options.seconds

    def client(number: int) -> None:
        k = number
        while time.monotonic() < end:
            try:
                text = replicas.ask(k, prompts[k % len(prompts)])
            except BROKEN:
                seen["repeated"] += 1
                time.sleep(0.5)
                continue
            seen["texts"] += 1
            seen["wrong"] += text != expected[k % len(prompts)]
            k += options.concurrency

    with ThreadPoolExecutor(options.concurrency) as pool:
        clients = pool.map(client, range(options.concurrency))
        time.sleep(options.seconds / 2)
        replicas.replace()
        list(clients)
    return seen


# -- servers and ranks -------------------------------------------------------------------------------------


class Server:
    """A server in a process group of its own."""

    def __init__(self, options: Namespace, number: int, speculative: dict[str, Any], *more: str) -> None:
        self.options, self.port = options, options.port + number
        self.path = options.folder / f"{options.how}.{number}.log"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", resolve(options.target), "--served-model-name", "target", "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager"]
        command += ["--gpu-memory-utilization", "0.3"]  # on a CPU: of all memory, to be free when it starts
        command += ["--shutdown-timeout", "10", *more]  # without these seconds vLLM kills its workers at once
        if speculative:
            command += ["--speculative-config", json.dumps(speculative)]
        cores = "0|1" if more else str(number % (os.cpu_count() or 1))
        own = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "1"}
        with self.path.open("a") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | own, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        print(f"waiting for port {self.port}", file=sys.stderr, flush=True)
        while True:
            with suppress(URLError):
                urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            if self.process.poll() is not None:
                raise SystemExit(f"port {self.port}: the server has ended, see {self.path}")
            time.sleep(1)

    def ask(self, prompt: str) -> str:
        """Return its greedy continuation of a prompt."""
        request = {"model": "target", "prompt": prompt, "max_tokens": self.options.max_new_tokens}
        body = json.dumps(request | {"temperature": 0.0}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        with urlopen(Request(url, body, {"Content-Type": "application/json"})) as answer:
            return str(json.load(answer)["choices"][0]["text"])

    def rounds(self) -> int:
        """Return how many rounds its policies have decided."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return round(sum(float(line.split()[-1]) for line in lines if line.startswith(ROUNDS)))

    def kill(self) -> None:
        """Kill it with all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Stop it as a user would."""
        self.process.terminate()
        self.process.wait()


class Servers:
    """Servers that are restarted one by one: two of their own, or one of two ranks."""

    def __init__(self, options: Namespace, count: int = 2, *more: str) -> None:
        self.new: Callable[[int], Server] = lambda k: Server(options, k, configured(options), *more)
        self.all, self.killed = [self.new(k) for k in range(count)], 0
        try:
            for one in self.all:
                one.wait()
        except BaseException:
            self.close()
            raise

    def ask(self, number: int, prompt: str) -> str:
        """Return a greedy continuation; raise one of `BROKEN` if the replica has gone."""
        return self.all[number % len(self.all)].ask(prompt)

    def rounds(self) -> int:
        return self.killed + sum(one.rounds() for one in self.all)

    def replace(self) -> None:
        self.killed = self.all[-1].rounds()
        self.all[-1].kill()
        self.all[-1] = self.new(len(self.all) - 1)
        self.all[-1].wait()

    def close(self) -> None:
        for one in self.all:
            one.close()


def configured(options: Namespace) -> dict[str, Any]:
    return draftwise.vllm_config(drafters=options.drafters, policy=options.policy, state=options.file)


# -- Ray Serve ---------------------------------------------------------------------------------------------


class Engine:
    """A replica of Ray Serve: an engine of vLLM."""

    def __init__(self, target: str, speculative: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        os.environ.update(settings(cores="nobind"))
        arguments = AsyncEngineArgs(
            model=resolve(target),
            dtype="float32",
            enforce_eager=True,
            gpu_memory_utilization=0.3,
            speculative_config=speculative,
        )
        self.llm, self.ids = AsyncLLM.from_engine_args(arguments), count()

    async def ask(self, prompt: str, new_tokens: int) -> tuple[str, int, int]:
        """Return its greedy continuation of a prompt, its process, and how many rounds that has decided."""
        from vllm import SamplingParams

        from draftwise.hosts.vllm import totals

        greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens)
        async for answer in self.llm.generate(prompt, greedy, str(next(self.ids))):
            text = str(answer.outputs[0].text)
        return text, os.getpid(), int(totals(self.llm).get("num_rounds", 0))

    def pid(self) -> int:
        """Return the process that runs it."""
        return os.getpid()


class Ray:
    """Two replicas behind Ray Serve, which chooses one for each request and replaces those that end."""

    def __init__(self, options: Namespace) -> None:
        import ray
        from ray import serve

        self.options, self.serve = options, serve
        self.known: dict[int, int] = {}  # rounds by process
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
        serve.start(http_options={"location": "NoServer"})
        new = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})(Engine)
        self.handle = serve.run(new.bind(options.target, configured(options)), route_prefix=None)

    def ask(self, number: int, prompt: str) -> str:
        from ray.exceptions import RayError

        try:
            answer = self.handle.ask.remote(prompt, self.options.max_new_tokens).result()
        except RayError as error:
            raise OSError(str(error)) from error
        text, process, self.known[process] = answer
        return str(text)

    def rounds(self) -> int:
        return sum(self.known.values())

    def replace(self) -> None:
        replica = psutil.Process(self.handle.pid.remote().result())
        for process in (*replica.children(recursive=True), replica):
            process.kill()

    def close(self) -> None:
        self.serve.shutdown()


HOW: dict[str, Callable[[Namespace], Any]] = {
    "servers": Servers,
    "ranks": lambda options: Servers(options, 1, "--data-parallel-size", "2"),  # each with its own policy
    "ray": Ray,
}


if __name__ == "__main__":
    start(main)
