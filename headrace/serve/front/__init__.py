"""What stands before the routes: who may pass and on which terms, and what is told about requests.

Owns keys (`keys`), the gate that every request passes (`gate`), the record of each request (`record`) and who
reports it (`log`, `traces`), and how long clients keep the server waiting (`waits`). Must not know what
endpoints do. Reading order: `keys`, `gate`, `record`, `log`, `traces`, `waits`.
"""
