"""The indices of lookups: in C++ where this machine has a compiler, else in Python; both do the same.

Between two rounds a pass of the target has replaced what the processor's caches held: an index in Python's
objects then waits for memory hundreds of times a round. The types of `native/` do what their namesakes in
Python do, to the last bit.
"""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from logging import getLogger
from pathlib import Path
from sysconfig import get_config_var, get_path
from typing import Any, cast

from ...models import compiler
from .automaton import Automaton
from .ngrams import Ngrams

SOURCES = Path(__file__).with_name("native")
LOG = getLogger(__name__)


@cache
def library() -> Any:
    """Return the module `lookups`, compiled if it is not on disk yet; None where that is impossible."""
    try:
        path = str(compiled_file())
        spec = spec_from_file_location("lookups", path, loader=ExtensionFileLoader("lookups", path))
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no module")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except (compiler.Unmade, OSError, ImportError, RuntimeError, subprocess.SubprocessError) as error:
        LOG.info("lookups in Python: %s", error)
        return None
    return module


def compiled_file() -> Path:
    """Return the module's file, compiled for this interpreter.

    Raises:
        Unmade: there is no compiler that can, or no header file of this interpreter.
        PermissionError: others may write to it.
    """
    # A product must not be joined with a sum: Python rounds both.
    options = ("-O2", "-ffp-contract=off", f"-I{get_path('include')}", f"-I{get_path('platinclude')}")
    return compiler.library(SOURCES, str(get_config_var("EXT_SUFFIX")), options=[options])


def automaton(depth: int) -> Automaton:
    """Return an empty automaton that counts contexts of up to `depth` tokens."""
    return cast(Automaton, getattr(library(), "Automaton", Automaton)(depth))


def ngrams(shortest: int, longest: int) -> Ngrams:
    """Return an empty index of n-grams of these lengths."""
    return cast(Ngrams, getattr(library(), "Ngrams", Ngrams)(shortest, longest))
