"""Tools around a running engine: load generation, diagnosis, compression. None is part of serving.

Owns what measures and explains. Must not be imported by the engine or the server.
"""
