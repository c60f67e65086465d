"""The speed of each way of drafting, and its causes."""
