"""Is the text the target's own, and would the tests notice if it were not?"""
