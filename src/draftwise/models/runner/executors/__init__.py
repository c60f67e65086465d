"""How the passes of a model are run: one file for each way."""
