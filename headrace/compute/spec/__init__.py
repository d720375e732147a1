"""Drafts: guesses of the next tokens, which the target checks several at a time.

Owns the proposers and their indexes, per slot. Must not know how drafts are checked (`runner/draws`), nor how
many are wanted (`host/sched/drafts`). Read `proposer`, then `drafting`, then a file of `proposers/`; for
those that compute, `kit` and `chain`, then a file of `drafters/`.
"""
