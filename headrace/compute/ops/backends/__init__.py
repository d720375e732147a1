"""Backends, one folder each: `reference` (numpy, the definition of right) and `native` (C++ kernels for the CPU).

A backend implements `headrace.compute.ops.api.Backend`; it must not know models, requests or other backends.
"""
