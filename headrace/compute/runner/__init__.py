"""The runner: executes step plans on one device.

Owns the per-slot state, the KV pool, and the order of a step: ends, begins, moves, rows, draws. Must not
know queues, policies or text. Reading order: `state` (per-slot arrays), `inputs` (plan to arrays), `mover`
(blocks), `passes` (a step in bounded pieces), `draws` (logits to results), `hidden` (hidden states to pooled
vectors), `decode` (steps that only continue answers), `work` (what a step computes), `runner`.
"""
