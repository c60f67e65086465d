"""Trains drafters, heads, classifiers and routers on the target's own text.

Importing this package loads no torch.
"""
