"""Bodies of the API as values: pydantic models of requests, and builders of answers.

Owns names and shapes of JSON fields. Must not know sockets or the engine's life. Reading order: `support`
(which documented fields are refused), `bounds` (counts before values), `sampling` (the fields both completion
endpoints share), `chat`, `completion`, `text`, then the answers: `logprobs`, `answers`.
"""
