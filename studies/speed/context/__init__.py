"""What is known before a draft, and what it says about acceptance."""
