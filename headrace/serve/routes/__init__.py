"""Endpoints, one family per file. The file is the registration: `serve/app` mounts its `ROUTES`.

A route reads a body (`serve/limits`), validates it (`serve/schema`), asks the engine, and answers. It must
not hold state of its own. Reading order: `completions`, `chat`, then the small ones.
"""
