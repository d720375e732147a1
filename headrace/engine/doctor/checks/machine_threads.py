"""Compute threads do not fit the cores that the server may use."""

from headrace.engine.doctor.finding import Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    threads = 0.0 if trace is None else trace.mean("headrace_compute_threads")
    quota = machine.quota
    evidence: dict[str, float | str] = {
        "threads": threads,
        "fitting": machine.threads,
        "cores": machine.allowed,
    }
    if quota is not None:
        evidence["cgroup_cpus"] = quota
    is_by_quota = quota is not None and int(quota) <= machine.threads < machine.allowed
    why = f": the cgroup's quota is {quota:g} CPUs of {machine.allowed} cores" if is_by_quota else ""
    if threads and threads > machine.threads:
        remedy = f"set --threads {machine.threads}: more threads than cores wait for each other{why}"
        gain = f"headrace bench latency MODEL --threads {machine.threads} measures it"
    elif threads and threads < machine.threads:
        remedy = f"set --threads {machine.threads}, or leave it out"
        gain = f"up to {machine.threads / threads:.1f} times the arithmetic"
    elif quota is not None and quota < machine.allowed and quota != int(quota):
        remedy = f"grant whole CPUs: a cgroup quota of {quota:g} lets threads stand still amid steps"
        gain = "headrace bench latency MODEL measures it: the largest over the median"
    else:
        return None
    return Finding(
        name="compute threads", severity="warning", evidence=evidence, remedy=remedy, expected_gain=gain
    )


CHECK = on_machine(_look)
