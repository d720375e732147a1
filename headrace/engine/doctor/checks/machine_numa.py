"""Memory lies on several nodes."""

from headrace.engine.doctor.finding import Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    del trace
    if machine.numa_nodes < 2:
        return None
    return Finding(
        name="memory nodes",
        severity="info",
        evidence={"nodes": machine.numa_nodes},
        remedy="one server per node: numactl --cpunodebind=N --membind=N headrace serve …",
        expected_gain="headrace bench compare of a server bound to a node and one that is not measures it",
    )


CHECK = on_machine(_look)
