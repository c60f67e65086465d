"""Compiles the indices for this interpreter, once, and loads them."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from logging import getLogger
from pathlib import Path
from sysconfig import get_config_var, get_path
from types import ModuleType

from ....models import compiler

SOURCES = Path(__file__).parent
LOG = getLogger(__name__)


@cache
def library() -> ModuleType | None:
    """The module `lookups`, compiled by the first process that asks for it; None where that is impossible."""
    try:
        path = str(found())
        spec = spec_from_file_location("lookups", path, loader=ExtensionFileLoader("lookups", path))
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no module")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except (compiler.Unmade, OSError, ImportError, RuntimeError, subprocess.SubprocessError) as error:
        LOG.info("lookups in Python: %s", error)
        return None
    return module


def found() -> Path:
    """The module on disk, compiled now if it is not there.

    Raises:
        Unmade: there is no compiler that can, or no header file of this interpreter.
        PermissionError: others may write to it.
    """
    # A product must not be joined with a sum: Python rounds both.
    options = ("-O2", "-ffp-contract=off", f"-I{get_path('include')}", f"-I{get_path('platinclude')}")
    return compiler.library(SOURCES, str(get_config_var("EXT_SUFFIX")), options=[options])
