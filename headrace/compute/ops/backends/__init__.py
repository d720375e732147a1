"""Backends, one folder each: `reference` (numpy, defines what is right), `native` (C++ kernels).

A backend implements `headrace.compute.ops.api.Backend`; it must not know models, requests or other backends.
"""
