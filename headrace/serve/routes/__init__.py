"""Endpoints, one family per file. The file is the registration: `serve/app` mounts its `ROUTES`.

A route is an `Endpoint` (`serve/endpoint`): it says what it takes and gives, and `/openapi.json` is made from
that. It reads a body (`serve/limits`), validates it (`serve/schema`), asks the engine, and answers. It must
not hold state of its own. Reading order: `completions`, `chat`, then the small ones.
"""
