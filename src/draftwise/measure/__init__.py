"""Measures, replays and simulates methods, and reports on them."""
