"""Plants one bottleneck after the other into a live server under load, and counts what the doctor names.

Reading order: `wires` (clients that misbehave), `causes` (what is planted, and by which load), `run`
(servers, windows, verdicts), `__main__` (the table).
"""
