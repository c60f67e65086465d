"""Making the bundled models."""
