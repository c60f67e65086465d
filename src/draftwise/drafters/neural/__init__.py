"""Drafters that run a model or a head."""
