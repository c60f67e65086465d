"""The stable home of what plug-ins import."""

from __future__ import annotations

import subprocess
import sys

import draftwise
from draftwise import plugins
from draftwise.core import roles


def test_it_has_every_role_and_is_light() -> None:
    kinds = {name for name, kind in vars(roles).items() if getattr(kind, "_is_protocol", False)}
    assert len(kinds) > 20 and kinds - {"Protocol"} <= set(plugins.__all__)
    code = "import sys, draftwise.plugins; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_its_names_are_the_packages_own() -> None:
    for name in set(plugins.__all__) & set(draftwise.__all__):
        assert getattr(plugins, name) is getattr(draftwise, name)
    assert sorted(plugins.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n)) == plugins.__all__
