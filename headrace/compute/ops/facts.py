"""What must be known of a backend before anything is loaded or started.

Each backend says so in its `facts.py`, which imports nothing of its kernels.
"""

from dataclasses import dataclass, field
from importlib import import_module

from headrace.compute.ops.heads import HeadSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """One backend's."""

    heads: HeadSizes = field(default_factory=HeadSizes)
    """Head sizes that its attention takes."""
    keeps_weights: bool
    """Weights take the memory that they take in their file; else four bytes each."""
    kv_dtype: str
    """Format of keys and values where none is asked for."""
    kv_reason: str
    """Why that one."""
    is_fast: bool
    """Made for speed: its steps are predicted from the machine's limits, and any other falls short."""


def backend_facts(name: str) -> BackendFacts:
    """What is known of a backend; `name` is that of its folder."""
    found: BackendFacts = import_module(f"headrace.compute.ops.backends.{name}.facts").FACTS
    return found
