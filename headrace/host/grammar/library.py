"""The library that compiles grammars, imported on first use: 50 ms and 8 MB that few programs need."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def library() -> Any:
    """The module `llguidance`."""
    return import_module("llguidance")
