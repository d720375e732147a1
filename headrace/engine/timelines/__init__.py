"""The timelines of requests in the client process: kept when they end, asked for while they run.

Owns the bounded memory of what ended (`store`; as bytes: `packed`). Must not know HTTP; where the seconds
come from is `host/timeline`.
"""
