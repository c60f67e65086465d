"""The search for a pre-tokenizer says what is at fault: llama.cpp, or the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwise import UserError, export_gguf
from draftwise.models.gguf import library

pytest.importorskip("gguf", reason="the package gguf is not installed")


@pytest.fixture
def _no_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(library, "import_module", missing)
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("_no_llama_cpp")
def test_without_llama_cpp_an_export_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"llama-cpp-python is not installed .*: pip install"):
        export_gguf("zoo:target", tmp_path / "target.gguf")
    assert not list(tmp_path.iterdir())
