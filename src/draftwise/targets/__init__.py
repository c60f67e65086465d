"""Models whose text is written."""
