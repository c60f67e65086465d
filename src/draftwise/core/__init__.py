"""The loop (decide, draft, verify, accept, learn) and the types of its data: numbers only, no torch."""
