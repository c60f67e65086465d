"""Compiles one blueprint: python -m draftwise.models.compiled.child FILE [behind] < BLUEPRINT.

Reads one line, a blueprint as JSON; prints one line, `{"seconds": ...}` or `{"error": ...}`. It ends with its
compilers when its input is closed, so that nothing outlives the process that asked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from contextlib import redirect_stdout, suppress
from pathlib import Path
from time import perf_counter


def main() -> None:
    """Compile, with the lowest priority if other work has precedence."""
    with suppress(OSError):
        os.setpgid(0, 0)
    if "behind" in sys.argv[2:]:
        os.nice(19)
    text = sys.stdin.readline()
    threading.Thread(target=_follow, daemon=True).start()
    start, answers = perf_counter(), sys.stdout
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent, prefix="scratch-") as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
        with redirect_stdout(sys.stderr):
            told = _compiled(text, Path(sys.argv[1]))
    print(json.dumps(told or {"seconds": perf_counter() - start}), file=answers, flush=True)


def _compiled(text: str, path: Path) -> dict[str, str] | None:
    try:
        import torch

        from .blueprint import Blueprint
        from .trace import compile_to

        torch.set_num_threads(1)
        compile_to(Blueprint.of_json(text), path)
    except Exception as error:  # whatever a class or a compiler raises, the model stays eager
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        return {"error": f"{type(error).__name__}: {lines[0][:160]}"}
    return None


def _follow() -> None:
    """End with all compilers when the parent closes the input, or ends."""
    sys.stdin.read()
    with suppress(OSError):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
