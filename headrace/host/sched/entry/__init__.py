"""How a request becomes a sequence that waits, and how one that waits gets into a step.

Owns what happens on arriving (`arrivals`: the checks, the queue) and on entering a step (`entrance`: slot,
blocks, the first row). Must not know who is next: the planner asks for one sequence after the other.
"""
