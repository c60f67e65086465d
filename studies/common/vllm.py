"""Run vLLM in studies, which need an environment with vLLM (`scripts/setup-vllm` makes one)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise.errors import UserError
from draftwise.generation.prompts import prompt_ids
from studies.common.command import again

DRAFTERS = "ngram,suffix,zoo:general"


def settings(*, level: str = "ERROR", cores: str | None = "0") -> dict[str, str]:
    """Environment variables of vLLM on a CPU; those that are already set are kept."""
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": level}
    if cores is not None:
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = cores
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def in_this_process() -> None:
    """The engine runs in this process, where it can be inspected; call this before vLLM is imported."""
    os.environ.update(settings() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


def engine(target: str, speculative: dict[str, Any] | None, *, batch: int, **more: Any) -> Any:
    """A greedy float32 engine for at most `batch` requests at once."""
    from vllm import LLM

    from draftwise.models.load import resolve

    options: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.3,  # on a CPU: of all memory, to be free when it starts
    }
    return LLM(resolve(target), max_num_seqs=batch, speculative_config=speculative, **options | more)


def apart(one: dict[str, Any], *, cores: str = "") -> dict[str, Any]:
    """Run this study in a process of its own, with `--one`, and return what it writes to `out`.

    With `cores` the engine is in that process, bound to them, and quiet.

    Raises:
        UserError: it ends without; says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "result.json", Path(folder) / "log"
        own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": cores}
        arguments = again("--one", json.dumps(one | {"out": str(out)}))
        with log.open("w") as err:
            where: dict[str, Any] = {"stdout": err, "stderr": err, "env": os.environ | settings() | own}
            ended = subprocess.run(arguments, check=False, **where if cores else {})
        if ended.returncode or not out.exists():
            lines = [line for line in log.read_text().splitlines() if "Error" in line or "error: " in line]
            raise UserError(lines[-1][-200:] if lines else f"ended with status {ended.returncode}")
        result: dict[str, Any] = json.loads(out.read_text())
    return result


def proposer(llm: Any) -> Any:
    """Draftwise's proposer in an engine of this process."""
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner.drafter


def ours(llm: Any) -> Any:
    """Draftwise's proposer in an engine of this process, as vLLM's or beside it."""
    return getattr(proposer(llm), "draftwise", proposer(llm))


def encode(llm: Any, text: str) -> list[int]:
    """Token ids in the chat template."""
    return prompt_ids(llm.get_tokenizer(), text)


def prompts(llm: Any, texts: Sequence[str], new_tokens: int) -> list[list[int]]:
    """Their token ids; prompts that leave too little room for an answer keep only their end."""
    room = llm.llm_engine.vllm_config.model_config.max_model_len - new_tokens - 16
    return [encode(llm, text)[-room:] for text in texts]


def write(llm: Any, prompts: Sequence[list[int]], level: int, most: int) -> list[list[int]]:
    """All texts, at most `level` in flight."""
    from vllm import SamplingParams

    greedy, engine = SamplingParams(temperature=0.0, max_tokens=most), llm.llm_engine
    waiting, texts, flying = iter(enumerate(prompts)), dict[str, list[int]](), 0
    while True:
        while flying < level and (one := next(waiting, None)) is not None:
            engine.add_request(str(one[0]), {"prompt_token_ids": one[1]}, greedy)
            flying += 1
        if not flying:
            return [texts[str(k)] for k in range(len(prompts))]
        for output in engine.step():
            if output.finished:
                texts[output.request_id] = list(output.outputs[0].token_ids)
                flying -= 1
