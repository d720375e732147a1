"""What must be known of the native kernels before they are loaded."""

from headrace.compute.ops.facts import BackendFacts
from headrace.compute.ops.heads import HeadSizes

FACTS = BackendFacts(
    heads=HeadSizes(step=8, most=256),  # what the kernels' buffers are made for
    keeps_weights=True,
    kv_dtype="int16",
    kv_reason="prefills long prompts faster than f16, in the same memory and as precisely",
    rounds_activations=True,
    is_fast=True,
)
