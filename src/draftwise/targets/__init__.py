"""Target models: the models whose text is generated."""
