"""The processor lacks instruction sets that the kernels use."""

from headrace.engine.doctor.finding import Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace

_ARM = {"asimd", "neon"}


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    del trace
    flags = machine.flags
    if not flags or "avx512_vnni" in flags:
        return None
    if flags & _ARM:
        missing = "" if "asimddp" in flags else "asimddp"
    elif {"avx2", "fma", "f16c"} <= flags:
        missing = ""  # AVX2 kernels are complete; VNNI would be faster, but nothing is wrong
    else:
        missing = ", ".join(sorted({"avx2", "fma", "f16c"} - flags))
    if not missing:
        return None
    return Finding(
        name="instruction sets",
        severity="warning",
        evidence={"missing": missing},
        remedy="a virtual machine may hide them: choose the processor type 'host'; else another machine",
        expected_gain="headrace bench latency MODEL on a machine that has them measures it",
    )


CHECK = on_machine(_look)
