"""Load testers and aider themselves, each from an environment of its own: see scripts/test-clients."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "DRAFTWISE_REAL_CLIENTS" not in os.environ:
    pytest.skip("scripts/test-clients runs them", allow_module_level=True)

from draftwise import Decoder
from draftwise.models.zoo import find
from studies.serve.local import serving

ROOT, MODEL = Path(__file__).parents[2], "zoo:target"
VLLM = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Decoder.from_pretrained(MODEL, drafters=["ngram"], seed=0), MODEL, batch=4) as (address, _):
        yield address


def run(name: str, *command: str, cwd: Path, **env: str) -> str:
    """What a client prints; it must end well."""
    program = ROOT / f".venv-{name}" / "bin" / command[0]
    if not program.exists():
        pytest.skip(f"no {program}")
    around = os.environ | {"HF_HOME": str(cwd), "no_proxy": "127.0.0.1", "PYTHONPATH": ""} | env
    out = subprocess.run(
        [program, *command[1:]],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=around,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
    return out.stdout


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_guidellm(url: str, path: str, tmp_path: Path) -> None:
    report, target = tmp_path / "report.json", find(MODEL)
    options = {
        "backend": f"kind=openai_http,target={url},request_format={path}",
        "tokenizer": f"kind=huggingface_auto,model={target}",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=3",
        "data": "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "output": f"kind=json,path={report}",
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    run("guidellm", "guidellm", "run", *given, "--disable-console", cwd=tmp_path)
    (found,) = json.loads(report.read_text())["benchmarks"]
    requests = found["requests"]
    assert not requests["errored"] and len(requests["successful"]) == 3
    assert [one["output_metrics"]["text_tokens"] for one in requests["successful"]] == [8, 8, 8]


@pytest.mark.parametrize(
    ("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_serve(url: str, backend: str, path: str, tmp_path: Path) -> None:
    address = ["--base-url", url, "--endpoint", path, "--backend", backend, "--model", MODEL]
    load = ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "8"]
    more = ["--num-prompts", "3", "--max-concurrency", "2", "--tokenizer", str(find(MODEL))]
    kept = ["--save-result", "--result-filename", "out.json"]
    run("vllm", "python", "-c", VLLM, *address, *load, *more, *kept, cwd=tmp_path)
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (3, 24)


def test_aider(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('print("hi")\n')
    quiet = (
        "--no-git --no-check-update --no-show-model-warnings --analytics-disable --no-pretty --no-gitignore"
    )
    asked = [*quiet.split(), "--yes-always", "--map-tokens", "0", "--message", "Say hello", "a.py"]
    env = {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": f"{url}/v1"}
    said = run(
        "aider", "aider", "--model", f"openai/{MODEL}", *asked, cwd=tmp_path, HOME=str(tmp_path), **env
    )
    assert "Tokens: " in said and " received." in said  # it says nothing of a request that is refused
