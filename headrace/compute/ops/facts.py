"""What must be known of a backend before anything is loaded or started.

Each backend says so in its `facts.py`, which imports nothing of its kernels.
"""

from dataclasses import dataclass, field
from importlib import import_module

from headrace.base.errors import ConfigError
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
    rounds_activations: bool = False
    """It can multiply bfloat16 weights with activations rounded to bfloat16."""
    is_fast: bool
    """Made for speed: its steps are predicted from the machine's limits, and any other falls short."""


def backend_facts(name: str) -> BackendFacts:
    """What is known of a backend; `name` is that of its folder."""
    found: BackendFacts = import_module(f"headrace.compute.ops.backends.{name}.facts").FACTS
    return found


def check_rounding(name: str, *, rounds: bool) -> None:
    """Whether a backend can round activations to bfloat16, where that is asked for.

    Raises:
        ConfigError: it cannot.
    """
    if rounds and not backend_facts(name).rounds_activations:
        raise ConfigError(
            f"device.float_activations is bfloat16, which the {name} backend does not offer; use the native "
            "backend, or float32",
            param="device.float_activations",
        )
