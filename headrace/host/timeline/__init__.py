"""Timelines: each second of a sequence, booked when the scheduler decides what becomes of it.

Owns how the time of a step falls to the sequences in it (`times`) and what a finished timeline says in one
sentence (`explain`). Must not know the scheduler, the ledger or any clock: it is told moments and counts.

Every booking closes the time since the one before, so the parts of a sequence add up to its life whatever
happens to it; what could go wrong is only the name under which a second is booked.
"""
