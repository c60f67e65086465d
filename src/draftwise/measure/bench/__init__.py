"""The benchmark: every policy and every peer on the same prompts, in one run."""
