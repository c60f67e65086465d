"""A fault that is put into a module reaches its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from studies.exactness import mutate

SCRIPT = """
from pathlib import Path
import sys
from studies.exactness.mutate import Mutant, lives
mutant = Mutant("core.accept", "", 1, "", "raise ImportError('the fault')")
print(lives(mutant, ["tests/core/test_accept.py"], 60, Path(sys.argv[1]))[0])
"""


def test_modules_that_the_study_itself_imports_are_changed_too(tmp_path: Path) -> None:
    report = tmp_path / "told"
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(report)], capture_output=True, text=True)
    assert (ran.stdout, "the fault" in report.read_text()) == ("False\n", True), ran.stderr


def test_tests_of_a_module_are_those_of_its_name_and_then_of_its_folder() -> None:
    tests = mutate.ROOT / "tests"
    assert mutate.tests_of("specs") == [str(tests / "test_specs.py")]
    assert mutate.tests_of("core.accept") == [str(tests / "core" / "test_accept.py"), str(tests / "core")]
