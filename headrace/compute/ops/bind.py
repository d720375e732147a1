"""Choose a backend for this machine, and say why.

`native` needs the extension module `headrace._native` and an instruction set that runs here; whatever stands
in the way is a reason in words, and `auto` then falls back to the numpy reference with a warning that says
what is lost.
"""

import logging
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from headrace.base.errors import ConfigError
from headrace.compute.device.kinds.cpu import detect
from headrace.compute.ops.api import Backend
from headrace.compute.ops.backends.reference.backend import ReferenceBackend
from headrace.compute.ops.facts import backend_facts, check_rounding
from headrace.compute.ops.heads import HeadSizes
from headrace.compute.ops.self_test import self_test

__all__ = ["Choice", "available_isas", "choose", "choose_backend", "head_sizes", "self_test"]

_log = logging.getLogger(__name__)

LOSS = "numpy computes instead of the C++ kernels: tens of times slower, and four bytes per weight"
"""What falling back costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend's name, instruction set and threads, each with its reason."""

    name: str
    isa: str
    threads: int
    reasons: tuple[str, ...]


def native_module() -> tuple[ModuleType | None, str]:
    """The extension module, or None with the reason."""
    try:
        return import_module("headrace._native"), "the native kernels are built in"
    except ImportError as error:
        return (
            None,
            f"the native kernels are missing ({error}); build them with a C++17 compiler: pip install .",
        )


def available_isas() -> tuple[str, ...]:
    """Instruction sets of the native kernels that run here, best first; empty without the extension."""
    module, _ = native_module()
    return () if module is None else tuple(module.isas())


def head_sizes(name: str) -> HeadSizes:
    """What attention of a backend takes; `name` is that of a `Choice`."""
    return backend_facts(name).heads


def choose(name: str = "auto", isa: str = "auto", threads: int | None = None) -> Choice:
    """Decide on a backend without starting it.

    Args:
        name: `auto`, `native` or `reference`.
        isa: `auto` or an instruction set.
        threads: compute threads; None: the cores that this process may use.

    Raises:
        ConfigError: the name is unknown, or `native` or `isa` was asked for by name and cannot run here.
    """
    if name not in {"auto", "native", "reference"}:
        raise ConfigError(
            f"backend {name!r} is unknown; choose auto, native or reference", param="device.backend"
        )
    if name == "reference":
        return Choice(name="reference", isa="numpy", threads=1, reasons=("reference was asked for",))
    module, why = native_module()
    if module is None:
        if name == "native" or isa != "auto":
            raise ConfigError(why, param="device.backend")
        return Choice(name="reference", isa="numpy", threads=1, reasons=(why, LOSS))
    chosen, why_isa = _choose_isa(isa, tuple(module.isas()))
    count, why_threads = _choose_threads(threads)
    return Choice(name="native", isa=chosen, threads=count, reasons=(why, why_isa, why_threads))


def choose_backend(
    name: str = "auto",
    isa: str = "auto",
    threads: int | None = None,
    *,
    graphs: bool = True,
    rounds: bool = False,
) -> Backend:
    """Start the backend that `choose` decides on, after a self-test of its kernels.

    Args:
        name: `auto`, `native` or `reference`.
        isa: `auto` or an instruction set.
        threads: compute threads; None: the cores that this process may use.
        graphs: run the step recorded and fused; else operation by operation (same results).
        rounds: round activations that meet bfloat16 weights to bfloat16.

    Raises:
        ConfigError: see `choose`; or `native` was asked for by name, or rounding was, and it fails its
            self-test; or the backend does not round.
    """
    choice = choose(name, isa, threads)
    check_rounding(choice.name, rounds=rounds)
    if choice.name == "reference":
        if name == "auto":
            _log.warning("falling back to the reference backend: %s", "; ".join(choice.reasons))
        return ReferenceBackend()
    backend = _native_backend(choice, graphs=graphs, rounds=rounds)
    findings = self_test(backend, rounds=rounds)
    if not findings:
        return backend
    backend.close()
    if name == "native" or isa != "auto" or rounds:  # no other backend rounds
        raise ConfigError(
            f"native kernels ({choice.isa}) fail their self-test: {'; '.join(findings)}", param="device.isa"
        )
    _log.warning("falling back to the reference backend: %s; %s", "; ".join(findings), LOSS)
    return ReferenceBackend()


def _native_backend(choice: Choice, *, graphs: bool, rounds: bool) -> Backend:
    module: Any = import_module("headrace.compute.ops.backends.native.backend")
    options = module.NativeOptions(isa=choice.isa, threads=choice.threads, fused=graphs, rounds=rounds)
    return module.NativeBackend(options)


def _choose_isa(isa: str, available: tuple[str, ...]) -> tuple[str, str]:
    if isa == "auto":
        return available[0], f"{available[0]} is the best of {', '.join(available)}"
    if isa not in available:
        raise ConfigError(
            f"instruction set {isa!r} is not built in or cannot run here; known: {', '.join(available)}",
            param="device.isa",
        )
    return isa, f"{isa} was asked for"


def _choose_threads(threads: int | None) -> tuple[int, str]:
    if threads is None:
        cores = detect()
        return cores.threads, cores.reason
    if not 1 <= threads <= 1024:
        raise ConfigError(f"threads is {threads}; allowed: 1 to 1024", param="device.threads")
    return threads, f"{threads} threads were asked for"
