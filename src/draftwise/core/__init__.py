"""The loop (decide, draft, verify, accept, learn) and the types that it passes on: numbers only, no torch."""
