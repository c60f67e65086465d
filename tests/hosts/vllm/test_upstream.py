"""The patch that would let vLLM's new model runner draft with our class: it fits, and does what it says."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

PATCH = Path(__file__).parents[3] / "examples" / "vllm_new_runner.patch"
SPECULATORS = "vllm/v1/worker/gpu/spec_decode/__init__.py"
FILES = ("vllm/config/vllm.py", "vllm/v1/core/sched/async_scheduler.py", SPECULATORS)


class Speculator:
    """A class that a configuration names."""

    def __init__(self, *given: Any) -> None:
        self.given = given


def test_the_patch_fits_and_builds_the_class_that_the_configuration_names(tmp_path: Path) -> None:
    import vllm  # type: ignore[import-not-found,unused-ignore]

    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(vllm.__file__).parents[1] / name, tmp_path / name)
    subprocess.run(["git", "apply", "--unidiff-zero", PATCH], cwd=tmp_path, check=True)
    spec = spec_from_file_location("vllm.v1.worker.gpu.spec_decode.patched", tmp_path / SPECULATORS)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    speculative = SimpleNamespace(method="custom_class", model=f"{__name__}.Speculator")
    config = SimpleNamespace(speculative_config=speculative)
    made = module.init_speculator(config, "cpu", "states")
    assert type(made).__name__ == "Speculator" and made.given == (config, "cpu", "states")
