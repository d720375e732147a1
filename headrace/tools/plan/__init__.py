"""Sizing: what a model needs and how fast it will be here, before its weights are loaded.

Reading order: `sizes` (memory, contexts, sequences), `speeds` (times of steps to times of requests),
`traffic` (arrivals, lengths), `simulate` (the real scheduler in virtual time), `report` (what is printed),
`planning` (opens a model and does all of it).
"""
