"""Tools that a model may call: their definitions, and the dialects in which models write calls.

Reading order: `definitions`, `dialect`, `dialects`.
"""
