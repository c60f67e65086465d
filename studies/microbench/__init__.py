"""Microbenchmarks of single parts."""
