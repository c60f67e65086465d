"""The report that people look at: tables and pictures of what was measured, replayed or simulated."""

from .report import write_report

__all__ = ["write_report"]
