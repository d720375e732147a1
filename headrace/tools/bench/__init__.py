"""The load tool behind `headrace bench`: sends requests to any OpenAI-compatible server and measures answers.

Speaks HTTP only (`offline` alone runs an engine in this process). Must not know what the server is made of.
The clock is the event loop's, so that tests run whole loads in virtual time. Reading order: `wire` (HTTP and
server-sent events), `ask` (one request to one `Outcome`), `datasets`, `arrivals`, `drive` (who sends when),
`summary` (outcomes to figures), `ramp`, `compare`, `report`, `plot`.
"""
