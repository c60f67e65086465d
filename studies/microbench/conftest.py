"""Command-line option of the microbenchmarks."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--replayed-trace", default="", help="a trace to replay in place of a simulated one")
