"""What drafting gains: the same prompts with and without, here and in llama.cpp, one stream, in turn.

`prompts` (what is asked), `ways` (who answers, and how), `table` (medians), `__main__` (the command).
`ranks` and `trees`: what trees of drafts would gain over chains.
"""
