"""Decisions: which rows run in which step, which blocks they use, and what the text looks like.

Owns integers and strings. Must not know models, devices or HTTP; standard library and `base` only (`text` may
use tokenizers and jinja2, `grammar` numpy and llguidance). Reading order: `kv` (who owns which block),
`sched` (who runs when), `text`, `grammar` (which tokens an answer may have).
"""
