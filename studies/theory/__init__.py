"""Learners and estimators on simulated rounds, where the truth is known."""
