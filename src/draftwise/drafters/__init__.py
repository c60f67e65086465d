"""Drafters: they guess the next tokens; one kind per file."""
