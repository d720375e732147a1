"""Letting a sequence into a step: slot, blocks, its first row.

Owns the checks and what happens on entering. Must not know who is next: the planner asks for one sequence
after the other.
"""
