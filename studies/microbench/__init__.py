"""What single parts cost on this machine."""
