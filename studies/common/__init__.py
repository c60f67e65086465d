"""Helpers that several studies share."""
