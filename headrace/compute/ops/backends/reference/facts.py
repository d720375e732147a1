"""What must be known of the reference before it is started."""

from headrace.compute.ops.facts import BackendFacts

FACTS = BackendFacts(
    keeps_weights=False,
    kv_dtype="f16",
    kv_reason="what the reference backend is held against",
    is_fast=False,
)
