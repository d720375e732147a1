"""What stands before the routes: who may pass and on which terms, what is logged and traced.

Owns keys (`keys`), the gate that every request passes (`gate`). Must not know what
endpoints do. Reading order: `keys`, `gate`.
"""
