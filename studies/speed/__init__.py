"""How fast each way of drafting is, and why."""
