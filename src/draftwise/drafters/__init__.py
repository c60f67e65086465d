"""Those who guess what the target will write: one kind a file."""
