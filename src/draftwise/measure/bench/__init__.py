"""The benchmark: every policy and every peer (another engine) on the same prompts, in one run."""
