"""The C++ backend: weights packed at load, a forward pass recorded once and replayed by one call per step.

Owns the Python side of `headrace._native`. Must not know models or requests. Reading order: `backend` (what
is offered), `record` (the forward pass becomes a list of nodes over values), `fuse` (rewrites of that list,
can be switched off), `lower` (quantized rows and in-place work), `plan` (buffers share memory), `program`
(the list is handed over and run).
"""
