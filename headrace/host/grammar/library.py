"""The library that compiles grammars, imported on first use: 50 ms and 8 MB that few programs need."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def library() -> Any:
    """The module `llguidance`."""
    return import_module("llguidance")


@cache
def any_to_lark() -> Any:
    """The library's translator from GBNF to Lark's syntax."""
    return import_module("llguidance.gbnf_to_lark").any_to_lark
