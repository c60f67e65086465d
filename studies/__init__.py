"""Studies: what produced the figures of the documentation, one folder a theme."""
