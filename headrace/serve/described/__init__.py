"""Bodies of answers as models. They describe the API; answers are made as dictionaries, and tests compare.

Reading order: `errors`, `choices` (completions and embeddings), `blocks` (messages and responses), `pages`.
"""
