"""Who runs in which step.

Owns sequences, the queue, slots and the token budget. Must not know tensors, text or HTTP. Reading order:
`sequence` (one request's state), `fair` (tenants), `queue` (who waits, and why), `view` and `policy` (when
waiting ones may join), `batch` (the step being planned), `allot` (tokens for the running), `admission` (what
can never run), `entry` (letting one in), `outcome` (what a result means), `steady` (steps that repeat the one
before), `planner` (fills a step), `scheduler` (plan and commit), `audit` (the invariants).
"""
