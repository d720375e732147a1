"""The engine in a process of its own.

Owns the wire (`ipc`: frames of typed messages), the child (`__main__`) and the parent's side (`remote`:
start, watchdog, restart). Must not know what requests mean. Reading order: `ipc`, `__main__`, `remote`.
"""
