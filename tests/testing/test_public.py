"""What plug-in authors import is light: neither torch nor pytest is loaded."""

from __future__ import annotations

import subprocess
import sys

import draftwise.testing


def test_importing_it_loads_neither_torch_nor_pytest() -> None:
    code = "import sys, draftwise.testing; sys.exit(bool({'torch', 'pytest'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there_and_documented() -> None:
    for name in draftwise.testing.__all__:
        assert getattr(draftwise.testing, name).__doc__
