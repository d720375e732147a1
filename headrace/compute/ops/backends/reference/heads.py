"""Head sizes of the reference."""

from headrace.compute.ops.heads import HeadSizes

HEADS = HeadSizes()
