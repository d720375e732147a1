"""The HTTP server: the OpenAI API, and the pages operators need.

Owns everything that knows HTTP or JSON. Must not know tensors, blocks or schedules: it talks to
`engine.AsyncLLM` only.

Reading order: `app` (what is put together), `state` (what routes share), `schema` (bodies to values, values
to bodies), `routes` (one file per family of endpoints), `stream` (server-sent events, disconnects),
`limits`, `auth`, `faults` (errors in OpenAI's shape), `metrics`, `connection` (who may keep one open),
`server` (start, signals, draining).
"""
