"""RequestRound what a round did into feedback for a policy."""
