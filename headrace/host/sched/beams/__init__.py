"""Beam search inside the scheduler: beams are sequences that fork over shared blocks.

Owns `search` (which beginnings to follow, and which answers are best: numbers only) and `forks` (the
sequences of each search, and how they change places). Must not know tensors or text.
"""
