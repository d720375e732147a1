"""The engine: joins decisions (`host`) and execution (`compute`), and turns requests into text.

Owns the resolved settings, the loop, and the border to the process that runs it. Must not know HTTP.

Reading order: `outputs` (what comes back), `resolve` (settings to concrete values with reasons), `build`
(puts the
parts together), `core` (plan, run, commit), `intake` (request to token ids), `output` (token ids to text),
`client`,
`ipc` and `process` (the core in this process or in another), `frontend` (what `LLM` and `AsyncLLM` share).
"""
