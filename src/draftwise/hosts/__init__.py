"""The same policies inside other engines."""
