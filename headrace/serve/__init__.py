"""The HTTP server: the APIs of OpenAI and Anthropic, and the pages operators need.

Owns everything that knows HTTP or JSON. Must not know tensors, blocks or schedules: it talks to
`engine.AsyncLLM` only.

Reading order: `app` (what is put together), `state` (what routes share), `schema` (bodies to values, values
to bodies), `routes` (one file per family of endpoints), `endpoint` and `openapi` (their description),
`conversation` (what all that take messages do), `answering` (choices), `dialects` (answers made of blocks),
`stream` (server-sent events, disconnects), `running` (ending a request by its id), `limits`, `front` (keys,
and what else stands before the routes), `faults` (errors in each API's shape), `metrics`, `connection` (who
may keep one open), `address`, `server` (start, signals, draining).
"""
