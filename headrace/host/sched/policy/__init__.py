"""Batching policies, one per file: when may waiting sequences join the running ones.

A policy owns nothing but that decision. Must not know blocks or tokens: the scheduler hands it a `BatchView`.
Reading order: `continuous`, then `static` and `dynamic`, the baselines to compare with.
"""
