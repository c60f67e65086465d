"""Texts against the target's own, and whether the tests would detect a difference."""
