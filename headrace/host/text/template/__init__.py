"""Where chat templates run: bounded, cut off from Python, unable to make special tokens of a caller's words.

Must not know messages or tokenizers. Reading order: `budget`, `sandbox`, `program`, `lookalike`.
"""
