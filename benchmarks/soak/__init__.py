"""A server under everything at once: streams, clients that leave, bad bodies, and an engine that is killed.

`python -m benchmarks.soak` runs it. Reading order: `asks` (what is sent), `wire` (one request and its end),
`watch` (health, memory, kills), `run` (the load), `verdict` (what must hold).
"""
