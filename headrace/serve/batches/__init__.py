"""Files of requests that are answered in the background: `/v1/files` and `/v1/batches`.

Owns what lies on disk (`store`), the reading of uploads (`form`) and of lines (`lines`), pages of lists
(`listing`), and the worker that answers lines through the application's own routes (`worker`). Must not know
the engine.
"""
