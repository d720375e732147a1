"""Number formats of weights: how the bytes of a row become float32 numbers.

Owns: `scheme` (what a format is) and `schemes/NAME` (one format each; the file is the registration). A
scheme states the meaning of its bytes in numpy and so is the definition that the kernels are compared with.
Must not know containers, models or devices. Reading order: `scheme`, `schemes/q8_0`, `schemes/q4_k`.
"""
