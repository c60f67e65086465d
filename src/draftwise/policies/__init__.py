"""Policies: each class is one way to turn learners and stop rules into decisions. Numbers only."""
