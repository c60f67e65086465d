"""Whether the weights that llama.cpp repacks for a processor work on this machine.

llama.cpp stores quantised weights in another order where the processor has instructions for it. Made by some
compilers, products with such weights end the whole process (by GCC 12 on processors with AMX, for example:
llama.cpp's issue 20824). So a process of its own tries them first, once for each build and machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from signal import SIGBUS, SIGFPE, SIGILL, SIGSEGV, Signals
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from .. import verdicts
from ..verdicts import processor

LOG = getLogger(__name__)
KIND = "repacked"  # the file of verdicts
CHILD = [sys.executable, "-m", f"{__package__}.repacked_child"]
CRASHES = (SIGSEGV, SIGILL, SIGBUS, SIGFPE)
PATIENCE = 120.0  # seconds, most of them for imports on a busy machine
TOLERANCE = 0.1  # of the largest logit: products of eight-bit numbers are rounded in another order
SAID = "llama.cpp does without repacked weights here: %s"


class Trial(NamedTuple):
    """The fault that was found, "" if none; and whether it will be so the next time."""

    fault: str = ""
    lasting: bool = True


@cache
def works(lib: Any) -> bool:
    """Whether `lib`, the module llama_cpp, computes the same with repacked weights as without.

    If not, this module's logger says why they are left out: as a warning when that is found.
    """
    if (fault := known(lib)) is not None:
        if fault:
            LOG.info(SAID, fault)
        return not fault
    if find_spec("gguf") is not None:
        trial = run_trial(CHILD)
    else:  # nothing can be tried, and AMX is not trusted
        amx = b"AMX_INT8 = 1" in lib.llama_print_system_info()
        why = "it has AMX, which is not tried without the package gguf" if amx else ""
        trial = Trial(why, lasting=False)
    if trial.lasting:
        verdicts.keep(KIND, _build(lib), {"fault": trial.fault})
    if trial.fault:
        LOG.warning(SAID + ". A llama-cpp-python from another compiler may have them", trial.fault)
    return not trial.fault


def known(lib: Any) -> str | None:
    """Return the fault found before on this machine, "" if none was; None if it was not looked for."""
    verdict = verdicts.load(KIND, _build(lib))
    fault = verdict.get("fault") if isinstance(verdict, dict) else None
    return fault if isinstance(fault, str) else None


def run_trial(command: Sequence[str]) -> Trial:
    """Find out whether passes over repacked weights work, by a process that runs some.

    Its last argument is a folder for its files, which is ours: a process that crashes removes nothing.
    """
    try:
        with TemporaryDirectory(prefix="draftwise-repacked-", ignore_cleanup_errors=True) as folder:
            ran = subprocess.run(
                [*command, folder],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return Trial(f"a trial took longer than {PATIENCE:.0f} s", lasting=False)
    except OSError as error:
        return Trial(f"a trial cannot be started ({error.strerror or error})", lasting=False)
    if ran.returncode < 0:
        killed = -ran.returncode
        return Trial(f"a trial ended by {Signals(killed).name}", lasting=killed in CRASHES)
    try:
        off = float(json.loads(ran.stdout.splitlines()[-1])["error"])
    except (IndexError, KeyError, TypeError, ValueError):
        last = (ran.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return Trial(f"a trial failed ({last.strip()[:160]})", lasting=False)
    wrong = not off <= TOLERANCE  # NaN is wrong, too
    return Trial(f"their logits are off by {off:.2g} of the largest" if wrong else "")


def _build(lib: Any) -> str:
    """This machine and this build of llama.cpp, in words."""
    digest = sha256(lib.llama_print_system_info())
    for file in sorted(Path(lib.__file__).parent.joinpath("lib").glob("*")):
        about = file.stat()
        digest.update(f"{file.name} {about.st_size} {about.st_mtime_ns}".encode())
    return processor(f"llama.cpp {digest.hexdigest()[:16]}", "", 1)
