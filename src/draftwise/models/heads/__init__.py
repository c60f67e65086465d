"""Small modules that draft from a target's hidden states: definitions, loading and saving."""
