"""Answers that must match a grammar: compiling, matching token by token, masks of the tokens that may come.

Owns the border to the `llguidance` library, which is imported when the first grammar comes. Must not know
requests, slots or steps. A matcher's masks depend on its grammar and on the tokens it was fed, on nothing
else: matchers share no state, since the library's limits count what a shared state has seen.

Reading order: `library`, `schema` (what is refused before the library sees it), `compiler`, `matcher`,
`cache`, `masks`.
"""
