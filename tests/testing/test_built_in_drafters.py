"""Every built-in drafter passes the suite that plug-in authors run on theirs.

Distributions with more texts, and good heads: tests/exactness, tests/drafters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise import registry
from draftwise.core.roles import Target
from draftwise.drafters.lookup.datastore import build
from draftwise.drafters.lookup.retrieval import RetrievalDrafter
from draftwise.drafters.neural.eagle import EagleDrafter
from draftwise.drafters.neural.lm import LMDrafter
from draftwise.drafters.neural.medusa import MedusaDrafter
from draftwise.targets.hf import HFTarget
from draftwise.testing import drafter_suite
from tests.drafters.neural.heads import random_eagle, random_medusa, random_mtp, random_published
from tests.effort import some
from tests.tiny import VOCAB, model

LOOKUPS = ("ngram", "suffix", "none")
MODELS = ("lm", "early-exit", "lookahead", "eagle", "medusa", "mtp")
HEADS = ("peagle", "dflash")  # of the name eagle, by what the folder holds


@cache
def made() -> Any:
    return model("llama", scale=5.0)


def reads() -> Target:
    return HFTarget(made())


MAKE: dict[str, Callable[..., Any]] = {
    "lm": lambda: LMDrafter(model("llama", scale=4.0), VOCAB),
    "early-exit": lambda target: registry.load("drafters", "early-exit")(target),
    "lookahead": lambda target: registry.load("drafters", "lookahead")(target),
    "eagle": lambda target: EagleDrafter(random_eagle(made()), target),
    "medusa": lambda target: MedusaDrafter(random_medusa(made()), target),
    "mtp": lambda target: EagleDrafter(random_mtp(made()), target),
    "peagle": lambda target: random_published(target, "peagle"),
    "dflash": lambda target: random_published(target, "dflash"),
}


def test_every_name_is_here() -> None:
    # GGUF files need a package of their own: tests/drafters/neural/test_gguf.py; a cascade needs others to
    # draft with: tests/drafters/test_cascade.py
    assert {*LOOKUPS, *MODELS, "retrieval", "gguf", "cascade"} == set(registry.names("drafters"))


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_drafter_passes(name: str) -> None:
    found = drafter_suite(registry.load("drafters", name), samples=500).failures()
    assert set(found) == ({"test_drafts_are_accepted_and_rejected"} if name == "none" else set()), found


def test_retrieval_passes(tmp_path: Path) -> None:
    text = "".join(str(d) for d in np.random.default_rng(3).integers(0, 4, 400))
    (tmp_path / "corpus.txt").write_text(text)
    store = str(tmp_path / "store")
    digits: Any = lambda text: [int(d) for d in text if d.isdigit()]  # noqa: E731
    build([tmp_path / "corpus.txt"], store, encode=digits, vocab_size=4, fingerprint="digits")
    suite = drafter_suite(lambda: RetrievalDrafter(store, min_match=1, min_prob=0.0), samples=500)
    assert not suite.failures()


@pytest.mark.parametrize("name", some([*MODELS, *HEADS], 8))
def test_a_model_drafter_passes(name: str) -> None:
    suite = drafter_suite(MAKE[name], target=reads, samples=60, learns=name != "lm")
    assert not suite.failures()
