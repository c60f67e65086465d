"""No network, and the bundled models loaded once for all tests."""

from __future__ import annotations

import atexit
import gc
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported: tests ask no server for anything

# What is found out stays out of the user's cache, and is found out once for all workers; other libraries keep
# their caches.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("HF_HOME", str(_CACHE / "huggingface"))
    os.environ.setdefault("MPLCONFIGDIR", str(_CACHE / "matplotlib"))
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="draftwise-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ["DRAFTWISE_STATE"] = "off"  # what one test has taught must not change what another one sees
os.environ["DRAFTWISE_COMPILE"] = "off"  # in the background it would take minutes; its own tests ask for it

gc.disable()  # a fifth of the time in which tests are collected: nothing that is imported is garbage


def pytest_collection_finish() -> None:
    """Collect garbage again, but do not look through what was imported each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Everything can be freed at the end: some libraries complain about what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No draft is too slow where a test does not say so: another busy process must not fail one."""
    from draftwise.core.loop import Loop
    from draftwise.hosts.follow import Follower

    patch = pytest.MonkeyPatch()
    for kind in (Loop, Follower):
        patch.setitem(kind.__init__.__kwdefaults__ or {}, "slow_seconds", math.inf)
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def layout() -> Iterator[None]:
    """Every layer that can be packed is, and every head in half precision: no test asks the clock."""
    from draftwise.models.weights import timing

    patch = pytest.MonkeyPatch()
    patch.setattr(timing, "fastest", timing.first)
    patch.setattr(timing, "faster_fused", timing.always)
    patch.setattr(timing, "faster_in_half", timing.always)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from draftwise.models.load import load_tokenizer

    return load_tokenizer("zoo:target")


@pytest.fixture(scope="session")
def decoder() -> Any:
    from draftwise import Decoder

    return Decoder.from_pretrained("zoo:target", drafters=["zoo:general", "ngram", "suffix"])


@pytest.fixture(scope="session")
def plain_model() -> Any:
    """The bundled target as Transformers loads it, in float32."""
    from draftwise.models.load import load_model

    return load_model("zoo:target")
