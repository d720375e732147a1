"""Text in, token ids out, and back: tokenizers, chat templates, the incremental detokenizer, stop strings.

Must not know models, devices or scheduling; may use `tokenizers` and `jinja2`. Model files, templates and
prompts are untrusted: every size is checked, every loop is bounded.

Reading order: `tokenizer` (the one class; `vocab` builds it from files), `detokenizer`, `stop`, `chat` (with
`template`, where templates run), `tools` (definitions, dialects), `parts` (answers taken apart).
"""
