"""What a policy has learnt: as numbers, in a file, and merged from several files."""
