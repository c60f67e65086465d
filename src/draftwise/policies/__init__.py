"""Who decides: each class is one way to turn learners and rules into decisions. Numbers only."""
