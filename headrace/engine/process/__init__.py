"""The engine in a process of its own.

Owns the wire (`ipc`: frames of typed messages; `outbox`: sending without waiting), the child (`spawn`,
`__main__`) and the parent's side (`remote`: watchdog, restart). Must not know what requests mean. Reading
order: `ipc`, `outbox`, `spawn`, `__main__`, `remote`.
"""
