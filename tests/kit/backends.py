"""The backends that can run here, by name: functions that make one."""

from importlib.util import find_spec

from headrace.compute.ops.backends.reference import ReferenceBackend

BACKENDS = {"reference": ReferenceBackend}

if find_spec("headrace._native") is not None:
    from headrace.compute.ops.backends.native.backend import NativeBackend

    BACKENDS["native"] = NativeBackend
