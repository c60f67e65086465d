"""The indices of lookups in C++, which this machine's compiler makes when they are first needed.

Between two rounds a pass of the target has replaced what the processor's caches held: an index in Python's
objects then waits for memory hundreds of times a round. Each type does what its namesake in Python does, to
the last bit; without a compiler there are those alone.
"""
