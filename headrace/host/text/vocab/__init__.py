"""Vocabularies from files: GGUF metadata and checkpoint directories.

Must not know chat or detokenizing. Reading order: `vocabulary` (what a tokenizer is made of), `specials`,
`spelling`, `bytepairs` (merged by native code), `gguf` (with `pretokenize`, `sentencepiece`, `endtokens`),
`directory`; `library_faults` where the tokenizers library meets a file or a text.
"""
