"""A numpy target and drafter with known distributions, for tests of drafters and policies."""
