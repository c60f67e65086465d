"""Programs that make the bundled models."""
