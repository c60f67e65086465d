"""`draftwise compile`: compile the passes of models before they are needed."""

from __future__ import annotations

from . import show
from .options import (
    DEFAULT_TARGET,
    AsJson,
    Device,
    Drafters,
    Dtype,
    Target,
    TrustRemoteCode,
    drafters_of,
)
from .progress import waiting
from .tables import table


def compile_(
    target: Target = DEFAULT_TARGET,
    drafters: Drafters = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Compile the passes of a target and its drafters; later runs on this machine start with them.

    Examples:
    draftwise compile
    draftwise compile --target Qwen/Qwen3-0.6B --drafters ngram,suffix --dtype float32
    """
    with waiting(f"compiling {target}: a minute or more for each model"):
        from draftwise import Decoder

        decoder = Decoder.from_pretrained(
            target,
            drafters=drafters_of(target, drafters),
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            compile="on",
        )
    if as_json:
        show.dump(decoder.compiled)
    else:
        table(None, [[name, state] for name, state in decoder.compiled.items()], prose=True)
