"""The exactness contract, proved on a model and prompts of the user's own.

Reading order: `prompts` (what is asked), `cases` (the ways of running that must change nothing), `verifying`
(runs them and compares bit for bit).
"""
