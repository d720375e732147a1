"""The backends that can run here, by name: functions that make one."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from headrace.compute.ops.backends.reference import ReferenceBackend

BACKENDS: dict[str, Callable[[], Any]] = {"reference": ReferenceBackend}

if find_spec("headrace._native") is not None:
    from headrace import _native
    from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions

    # The fastest instruction set only: that all of them give the same bits is tested elsewhere.
    BACKENDS["native"] = lambda: NativeBackend(NativeOptions(isa=_native.isas()[0], threads=2))
