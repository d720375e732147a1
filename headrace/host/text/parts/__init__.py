"""What an answer is made of: content, reasoning, tool calls; generated text split into them as it comes.

Must not know templates or tokenizers. Reading order: `events`, `json_value`, `reader`, `splitter`.
"""
