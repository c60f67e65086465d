"""What a policy has learned: as numbers, in a file, and merged from several files."""
