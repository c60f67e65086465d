"""Drafters that look tokens up in text: no model, no torch."""
