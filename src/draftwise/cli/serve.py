"""`draftwise serve`: an OpenAI-compatible server."""

from __future__ import annotations

import json
import os
import shlex
import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from typer import Option

from draftwise.errors import DraftwiseWarning, UserError
from draftwise.inputs import expanded
from draftwise.serve.limits import Limits

from .options import ModelOptions, PrefixCache

KEY = "DRAFTWISE_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """Where the server listens, and to whom."""

    section: ClassVar[str] = "Address"
    host: Annotated[str, "Address to listen at."] = "127.0.0.1"
    port: Annotated[int, "Port to listen at; 0: a free one."] = 8000
    api_key: Annotated[str | None, f"Key that clients must send. Default: ${KEY}, or none."] = None
    name: Annotated[
        str | None, "Name of the model for clients. Default: --target, of a path its last part."
    ] = None
    allow_origin: Annotated[list[str], "Let web pages of this origin call the server; may be repeated."] = (
        field(default_factory=list)
    )


def serve(
    models: ModelOptions,
    address: AddressOptions,
    limits: Limits,
    prefix_cache: PrefixCache = 1024.0,
    log_requests: Annotated[
        bool, Option("--log-requests/--no-log-requests", help="Log one line of JSON a request to stderr.")
    ] = True,
    print_vllm: Annotated[
        bool, Option("--print-vllm", help="Print the command that serves the same with vLLM, and end.")
    ] = False,
    print_grafana: Annotated[
        bool, Option("--print-grafana", help="Print a Grafana dashboard of /metrics, and end.")
    ] = False,
) -> None:
    """Serve the target to OpenAI clients; requests are decoded together, each with drafts of its own.

    Examples:
    draftwise serve
    draftwise serve --target Qwen/Qwen3-8B --drafters Qwen/Qwen3-0.6B,ngram,suffix --state learnt.json
    draftwise serve --port 9000 --batch 4 --queue 16 --timeout 60
    draftwise serve --print-grafana > draftwise.json
    """
    if print_vllm:
        print(_vllm(models, address, limits))
        return
    if print_grafana:
        from draftwise.serve.grafana import make_dashboard

        print(json.dumps(make_dashboard(), indent=1))
        return
    run = _server()
    key = os.environ.get(KEY, "") if address.api_key is None else address.api_key
    if key != key.strip():
        raise UserError(f"--api-key or ${KEY} has white space at an end, which no client can send: remove it")
    run.bind(address.host, address.port).close()  # before minutes of loading
    if not key and not run.is_local(address.host):
        message = f"--host {address.host} without a key: all who reach this machine can use it; set --api-key"
        warnings.warn(message, DraftwiseWarning, stacklevel=2)
    decoder = models.load(seed=None, prefix_cache=prefix_cache)
    run.serve(
        decoder,
        served_name(models, address),
        limits=limits,
        host=address.host,
        port=address.port,
        key=key,
        origins=address.allow_origin,
        log=log_requests,
    )


def served_name(models: ModelOptions, address: AddressOptions) -> str:
    """The name of the model for clients, who need not know where its files are."""
    path = expanded(models.target)
    return address.name or (path.resolve().name if path.exists() else models.target)


def _vllm(models: ModelOptions, address: AddressOptions, limits: Limits) -> str:
    """The command that serves the same target with vLLM: same drafters, policy and state file."""
    from draftwise import vllm_config
    from draftwise.models.load import locate
    from draftwise.state.cached import AUTO, OFF

    if models.exact:
        raise UserError("--exact --print-vllm: vLLM has VLLM_BATCH_INVARIANT=1 for this; leave --exact out")
    target = str(locate(models.target)) if models.target.startswith("zoo:") else models.target
    words = ["vllm", "serve", target, "--host", address.host, "--port", str(address.port)]
    words += ["--served-model-name", served_name(models, address), "--max-num-seqs", str(limits.batch)]
    if limits.window:
        words += ["--max-model-len", str(limits.window)]
    if models.dtype != "auto":
        words += ["--dtype", models.dtype]
    if models.trust_remote_code:
        words.append("--trust-remote-code")
    if address.api_key:
        words += ["--api-key", address.api_key]
    if address.allow_origin:
        words += ["--allowed-origins", json.dumps(address.allow_origin)]
    drafters, policy = models.drafter_names, models.policy or ""
    state = None if models.state in (AUTO, OFF) else models.state
    config = vllm_config(drafters=drafters, policy=policy, state=state)
    return shlex.join([*words, "--speculative-config", json.dumps(config)])


def _server() -> Any:
    """The module that runs the server, which needs libraries of an extra."""
    try:
        from draftwise.serve import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("draftwise"):
            raise
        raise UserError(f"draftwise serve needs {error.name}: pip install 'draftwise[serve]'") from None
    return run
