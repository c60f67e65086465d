"""What an installation consists of, and what is missing or broken: the facts of `draftwise doctor`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from draftwise import registry
from draftwise.drafters.lookup import indices
from draftwise.errors import UserError, one_line
from draftwise.models import verdicts
from draftwise.models.gguf import repacked
from draftwise.models.gguf.library import library
from draftwise.models.threads import FIXED, fitting, free_cores
from draftwise.models.zoo import INSTALL, list_parts, list_zoo, zoo_folder

from . import machine
from .machine import MEAN, START

NEEDED = ("torch", "transformers")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def checkup() -> dict[str, Any]:
    """All facts by section; `broken` has one line for each thing that cannot work."""
    meter, broken = machine.Meter(), list[str]()
    for name in NEEDED:
        try:
            import_module(name)
        except Exception as error:  # whatever a broken installation raises
            broken.append(f"{name} cannot be imported: {one_line(error)}")
    facts = machine.describe()
    sections = {
        "machine": _machine(facts),
        "load": _load(meter.sample(), facts["threads"]),
        "versions": {"python": facts["python"], **facts["versions"]},
        "llamacpp": _llamacpp(broken),
        "extras": extras(),
        "caches": _caches(),
        "zoo": _zoo(broken),
    }
    broken += [f"{line}: install it" for line in unmet()]
    broken += _plugins()
    return sections | {"broken": broken}


def unmet() -> list[str]:
    """The requirements of Draftwise that are not installed."""
    return [f"{name} is required and not {what}" for name, what in _lacking("")]


def extras() -> dict[str, list[str]]:
    """Each extra of the distribution's metadata, with the requirements that it lacks."""
    names = metadata("draftwise").get_all("Provides-Extra") or []
    return {name: [what for what, _ in _lacking(name)] for name in sorted(names)}


def quota(text: str) -> float | None:
    """The cores that a control group allows, from the content of its `cpu.max`; None without a limit."""
    allowed, _, period = text.strip().partition(" ")
    return None if allowed == "max" or not period else int(allowed) / int(period)


def _lacking(extra: str) -> Iterator[tuple[str, str]]:
    """Yield the requirements of this extra alone that do not hold, and what they are not.

    With no extra, those of Draftwise.
    """
    for requirement in map(Requirement, requires("draftwise") or ()):
        always, here = (
            requirement.marker is None or requirement.marker.evaluate({"extra": name}) for name in ("", extra)
        )
        if always == bool(extra) or not here:
            continue
        text = f"{requirement.name}{requirement.specifier}"
        try:
            there = version(requirement.name)
        except PackageNotFoundError:
            yield text, "installed"
            continue
        if not requirement.specifier.contains(there, prereleases=True):
            yield text, f"satisfied by the installed {there}"


def _machine(facts: dict[str, Any]) -> dict[str, Any]:
    torch: Any = _try(lambda: import_module("torch"))
    own = {key: facts[key] for key in ("cpu", "cores", "threads", "memory_gb", "gpu", "system")}
    return own | {
        "cpu_limit": quota(QUOTA.read_text()) if QUOTA.is_file() else None,
        "instructions": _try(lambda: torch.backends.cpu.get_cpu_capability()),
        "features": _try(lambda: _features(torch)) or [],
        "compiler": _try(lambda: import_module("torch._inductor.cpp_builder").get_cpp_compiler()),
        "kernels": _try(lambda: import_module("draftwise.models.native.kernels").kernels()) or [],
        "lookups": "C++" if indices.library() else "Python",
    }


def _features(torch: Any) -> list[str]:
    """The vector and matrix extensions that PyTorch finds, by its own names."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return sorted(
        name for name, there in capabilities.items() if there is True and name.startswith(("avx", "amx"))
    )


def _load(sample: dict[str, Any], threads: int | None) -> dict[str, Any]:
    """The load average, the cores that others used during the check, whether one can measure now, for how
    many threads there is room, and which setting of the user fixes their number."""
    cores, load, others = machine.cores(), sample["load"], sample["others"]
    quiet = load is not None and load <= START * cores and (others is None or others <= MEAN * cores)
    room = None if threads is None or others is None else fitting(threads, threads, free_cores(others))
    fixed = next((name for name in FIXED if os.environ.get(name)), "")
    return {"average": load, "others": others, "quiet": quiet, "room": room, "fixed": fixed}


def _llamacpp(broken: list[str]) -> dict[str, Any] | None:
    """The version of llama-cpp-python, what llama.cpp was built for, and what is wrong with repacked weights
    ("" nothing, None untried); None if it is not installed."""
    if find_spec("llama_cpp") is None:
        return None
    try:
        lib = library()
    except UserError as error:
        broken.append(str(error))
        return None
    info = lib.llama_print_system_info().decode("utf-8", "replace")
    return {
        "version": version("llama-cpp-python"),
        "features": machine.llamacpp_features(info),
        "repacked": repacked.known(lib),
    }


def _caches() -> dict[str, str]:
    hub = _try(lambda: import_module("huggingface_hub.constants").HF_HUB_CACHE)
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _try(
        lambda: import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    )
    return {
        "models": str(hub or ""),
        "verdicts": str(_try(lambda: verdicts.place("probes").parent) or ""),
        "kernels": str(compiled or tempfile.gettempdir()),
    }


def _zoo(broken: list[str]) -> dict[str, Any]:
    folder = zoo_folder()
    if folder is None:
        return {"installed": False, "remedy": INSTALL}
    try:
        names = [model.name for model in (*list_zoo(), *list_parts())]
    except (OSError, ValueError, KeyError) as error:
        broken.append(f"the bundled models in {folder} cannot be read ({one_line(error)}): {INSTALL}")
        names = []
    return {"installed": True, "folder": str(folder), "models": names}


def _plugins() -> Iterator[str]:
    for group in registry.GROUPS:
        for name, point in registry.points(group).items():
            try:
                point.load()
            except UserError as error:
                yield f"{group}: {name}: {error}"
            except Exception as error:  # whatever a plug-in raises
                yield f"{group}: {name} ({point.value}) cannot be imported: {one_line(error)}"


def _try(ask: Callable[[], Any]) -> Any:
    """The answer; None where this version or this machine has none."""
    try:
        return ask()
    except Exception:  # of a library's internals, which may be absent
        return None
