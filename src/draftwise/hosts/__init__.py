"""The same policies inside other inference engines."""
