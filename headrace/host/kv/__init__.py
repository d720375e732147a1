"""Bookkeeping of the KV pool in block numbers.

Owns references, block keys, block tables and the prefix index. Must not know the bytes of a block, nor
requests' scheduling. A request's KV is kept for all positions, also for layers with a window (windows only
mask), so a prefix hit needs nothing but the blocks themselves. Reading order: `keys` (content addresses),
`pool` (references and free blocks), `prefix` (key to block, and why a lookup missed), `table`, `ledger` (the
sole mutator).
"""
