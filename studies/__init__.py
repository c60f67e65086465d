"""Studies: the programs that produced the figures of the documentation, one folder per theme."""
