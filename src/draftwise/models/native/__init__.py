"""Kernels of our own in C++, which this machine's compiler makes when they are first needed.

A pass over a few tokens does little more than read weights, keys and values; libraries are tuned for products
of large matrices. Here what is read lies side by side and is read once, and a token's result does not depend
on the other tokens of its pass. The library is kept in the user's cache. Without a compiler there are no such
kernels, and PyTorch computes everything.
"""
