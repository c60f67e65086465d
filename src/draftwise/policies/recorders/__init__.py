"""Recorders turn what a round did into feedback for a policy."""
