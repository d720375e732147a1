"""The engine: joins decisions (`host`) and execution (`compute`), and turns requests into text.

Owns the resolved settings, the loop, and the border to the process that runs it. Must not know HTTP.

Reading order: `outputs` (what comes back), `resolve` and `sizing` (settings to concrete values with reasons),
`build` (puts the parts together), `core` (plan, run, commit), `loop` (drives the core), `text`, `chat` and
`intake` (request to token ids), `grammars` (compiled beside the loop), `output` (token ids to text), `client`
and `process` (the core in a thread or in a process), `frontend` and `watch` (what `llm` and `async_llm`
share), `offline` (lists of prompts).
"""
