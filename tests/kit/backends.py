"""The backends, by name: functions that make one. Without built kernels the tests fail; they do not skip."""

from collections.abc import Callable
from typing import Any

from headrace import _native
from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions
from headrace.compute.ops.backends.reference import ReferenceBackend

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceBackend,
    # The fastest instruction set only: that all of them give the same bits is tested elsewhere.
    "native": lambda: NativeBackend(NativeOptions(isa=_native.isas()[0], threads=2)),
}
