"""Requests that answer under a grammar.

Owns the compilation beside the engine's loop and the matchers of running sequences. Must not know how
grammars are matched (`host/grammar`). Reading order: `structured`, `turns`, `compiling`.
"""
