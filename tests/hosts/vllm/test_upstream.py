"""The patch that would let vLLM's new model runner draft with our class: it fits, and does what it says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

PATCH = Path(__file__).parents[3] / "examples" / "vllm_new_runner.patch"
CONFIG, SCHEDULER = "vllm/config/vllm.py", "vllm/v1/core/sched/async_scheduler.py"
SPECULATORS = "vllm/v1/worker/gpu/spec_decode/__init__.py"


class Speculator:
    """A class that a configuration names."""

    def __init__(self, *given: Any) -> None:
        self.given = given


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed vLLM's files with the patch."""
    import vllm  # type: ignore[import-not-found,unused-ignore]

    folder = tmp_path_factory.mktemp("vllm")
    for name in (CONFIG, SCHEDULER, SPECULATORS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(vllm.__file__).parents[1] / name, folder / name)
    subprocess.run(["git", "apply", "--unidiff-zero", PATCH], cwd=folder, check=True)
    return folder


def load(patched: Path, name: str) -> ModuleType:
    """A patched file as a module beside the installed one."""
    dotted = ".".join([*Path(name).parent.parts, f"patched_{Path(name).stem}"])
    spec = spec_from_file_location(dotted, patched / name)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_runner_builds_the_class_that_the_configuration_names(patched: Path) -> None:
    speculative = SimpleNamespace(method="custom_class", model=f"{__name__}.Speculator")
    config = SimpleNamespace(speculative_config=speculative)
    made = load(patched, SPECULATORS).init_speculator(config, "cpu", "states")
    assert type(made).__name__ == "Speculator" and made.given == (config, "cpu", "states")


def test_the_configuration_allows_the_new_runner(patched: Path) -> None:
    from vllm.config import VllmConfig  # type: ignore[import-not-found,unused-ignore]

    parallel = SimpleNamespace(
        distributed_executor_backend=None, pipeline_parallel_size=1, use_ubatching=False
    )
    speculative = SimpleNamespace(method="custom_class", parallel_drafting=False)
    config: Any = SimpleNamespace(speculative_config=speculative, parallel_config=parallel)
    unsupported = "_get_v2_model_runner_unsupported_features"
    assert getattr(VllmConfig, unsupported)(config) == ["speculative method 'custom_class'"]
    assert getattr(load(patched, CONFIG).VllmConfig, unsupported)(config) == []
    text = (patched / CONFIG).read_text()
    assert text.count('speculative_config.method != "custom_class"') == 2, "asynchronous scheduling stays on"


def test_drafts_of_a_batch_may_differ_in_length(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(patched, SCHEDULER)

    class Lengths(module.AsyncScheduler):  # type: ignore[name-defined,misc]
        def get_num_draft_tokens(self, request: Any) -> int:
            return {"short": 1, "none": 0}.get(request.name, int(super().get_num_draft_tokens(request)))

    monkeypatch.setattr(module.Scheduler, "_update_after_schedule", lambda *_: None)
    scheduler: Any = object.__new__(Lengths)
    names = ("short", "none", "other")
    scheduler.requests = {
        name: SimpleNamespace(
            name=name,
            is_prefill_chunk=False,
            use_structured_output=False,
            num_output_placeholders=0,
            spec_token_ids=[],
        )
        for name in names
    }
    scheduler.num_sampled_tokens_per_step, scheduler.use_v2_model_runner = 1, True
    scheduler.current_step, scheduler.decode_stagger = 0, 1
    scheduler._update_after_schedule(
        SimpleNamespace(
            scheduled_spec_decode_tokens={},
            num_spec_tokens_to_schedule=4,
            num_scheduled_tokens=dict.fromkeys(names, 1),
            pending_structured_output_tokens=False,
        )
    )
    lengths = [len(scheduler.requests[name].spec_token_ids) for name in names]
    assert lengths == [1, 0, 4]
