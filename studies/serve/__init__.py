"""`draftwise serve` under load, with broken requests, and compared with single clients."""
