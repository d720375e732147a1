"""Vocabularies from files: GGUF metadata and checkpoint directories.

Must not know chat or detokenizing. Reading order: `vocabulary` (what a tokenizer is made of), `specials`,
`spelling`, `gguf` (with `pretokenize`, `sentencepiece`, `endtokens`), `directory`.
"""
