"""Text in, token ids out, and back: tokenizers, chat templates, the incremental detokenizer, stop strings.

Must not know models, devices or scheduling; may use `tokenizers` and `jinja2`. Model files, templates and prompts are
untrusted: every size is checked, every loop is bounded.

Reading order: `tokenizer` (the one class; `specials` splits text at special tokens), `gguf` and `directory` (build it
from a file, with `pretokenize`, `sentencepiece`, `spelling`, `endtokens`), `detokenizer`, `stop`, `chat` (with
`sandbox` and `lookalike`).
"""
