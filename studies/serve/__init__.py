"""What `draftwise serve` does under load."""
