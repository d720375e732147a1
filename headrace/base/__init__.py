"""Values that every floor shares: identifiers, requests, step plans, settings, errors, counters.

Owns the vocabulary. Must not know how anything is decided or computed; standard library only.
Reading order: `ids`, `request`, `step`, `config`, `errors`, then the small services (`clock`, `env`,
`registry`, `memory`).
"""
