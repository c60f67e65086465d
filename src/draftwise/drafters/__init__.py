"""Drafters: what guesses the next tokens, one kind a file."""
