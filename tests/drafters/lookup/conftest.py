"""The indices of lookups in both languages."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.drafters.lookup import indices
from draftwise.drafters.lookup.indices import library


@pytest.fixture(params=["C++", "Python"])
def language(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the indices of a test are written in."""
    if request.param == "Python":
        monkeypatch.setattr(indices, "library", lambda: None)
    elif library() is None:
        pytest.skip("no C++ compiler here, or no header files of Python")
    return str(request.param)
