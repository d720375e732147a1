"""Answers made of blocks: text, reasoning and calls in the order the model wrote them.

`blocks` gathers one answer and tells what changed; a spelling turns that into one API's events and bodies.
Whole answers and streams are spelled from the same blocks, so they cannot differ. Reading order: `blocks`,
`messages` (Anthropic), `responses` (OpenAI).
"""
