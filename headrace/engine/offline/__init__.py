"""Calls with lists of prompts.

Owns `batch` (submits under the queue's limits and collects), `gather` (outputs to whole results) and
`progress` (the bar). Must not know how the engine runs.
"""
