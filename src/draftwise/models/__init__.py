"""Loads models and runs them: the KV cache, masks and positions, packed weights, hidden states."""
