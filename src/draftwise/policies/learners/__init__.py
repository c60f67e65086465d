"""Learners, one algorithm a file: they choose among numbered arms and know nothing of drafting."""
