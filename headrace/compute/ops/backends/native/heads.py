"""Head sizes of the native kernels."""

from headrace.compute.ops.heads import HeadSizes

HEADS = HeadSizes(step=8, most=256)
"""What the kernels' buffers are made for."""
