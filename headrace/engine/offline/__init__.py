"""Calls with lists of prompts.

Owns `batch` (submits under the queue's limits and collects), `gather` (outputs to whole results),
`progress` and `bar` (what is drawn meanwhile). Must not know how the engine runs.
"""
