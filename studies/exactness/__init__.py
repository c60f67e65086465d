"""Is the text identical to the target's own, and would the tests detect a difference?"""
