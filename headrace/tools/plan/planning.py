"""Opens a model's header, resolves its settings, and predicts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.base.config import EngineConfig, SpeculateConfig
from headrace.base.metrics import Slo
from headrace.engine.build import OpenedModel, device_facts, make_scheduler, open_model
from headrace.engine.cost.rehearsal import QUIET_SHARE, rehearse
from headrace.engine.resolve import Resolved, resolve
from headrace.engine.settings.activations import rounds
from headrace.tools.plan.report import PROMPTS, machine_of, memory_of, saturation, speed_of, traffic_of
from headrace.tools.plan.simulate import simulate
from headrace.tools.plan.sizes import sizes_of
from headrace.tools.plan.speeds import Speeds
from headrace.tools.plan.traffic import Traffic, span

DEFAULT_CONTEXT = 512
PLAIN = (
    "drafts: what they take is in the memory; speeds are those without them, as how many agree depends on "
    "the text"
)
ROUNDED = "activations: rounded to bfloat16 where they meet bfloat16 weights"


def disturbance(cores: float, threads: int) -> list[str]:
    """A warning when a rehearsal had fewer cores than it has compute threads."""
    if cores >= QUIET_SHARE * threads:
        return []
    return [
        f"warning: the speeds were measured with {cores:.1f} of {threads} cores: other work took the rest, "
        "so they may be too low; plan again when the machine is quiet"
    ]


def _plain(resolved: Resolved) -> Resolved:
    """The same blocks and limits, without drafts."""
    return replace(resolved, config=replace(resolved.config, speculate=SpeculateConfig()))


class Planning:
    """A model, its settings, and a machine.

    Args:
        config: settings.
        memory_bytes: what the model may take; None: what is free here.

    Raises:
        HeadraceError: as for serving it.
    """

    def __init__(self, config: EngineConfig, *, memory_bytes: int | None = None) -> None:
        opened = open_model(config, with_text=False)
        device = device_facts(config)
        if memory_bytes is not None:
            device = replace(device, memory_bytes=memory_bytes, memory_reason="asked for")
            opened = replace(opened, resolved=resolve(config, opened.resolved.model, device))
        self._opened: OpenedModel = opened
        self._available_bytes = device.memory_bytes
        self._speeds: Speeds | None = None
        self._limits: dict[str, Any] = {}
        self._notes: list[str] = []
        if opened.resolved.speculation.is_on:
            self._notes.append(PLAIN)
        if rounds(config.device):
            self._notes.append(ROUNDED)

    def report(self, *, context: int | None = None, prompts: str | None = None) -> dict[str, Any]:
        """Memory, machine and speed as plain data.

        Args:
            context: tokens behind which sequences decode; None: 512, or what fits.
            prompts: prompt lengths as `N` or `LEAST:MOST`; None: some common ones.
        """
        resolved = self._opened.resolved
        sizes = sizes_of(resolved, self._available_bytes, context)
        speeds = self._rehearsed()
        behind = min(context or DEFAULT_CONTEXT, resolved.max_model_len)
        lengths: Sequence[int] = PROMPTS if prompts is None else sorted(set(span("--prompt-tokens", prompts)))
        return {
            "model": resolved.model.name,
            "about": resolved.model.description,
            "memory": memory_of(sizes, resolved.geometry.block_size),
            "machine": self._limits,
            "speed": speed_of(speeds, sizes, resolved.max_num_seqs, behind, lengths),
        }

    def simulate(self, traffic: Traffic, replicas: int, slo: Slo) -> dict[str, Any]:
        """Figures of the traffic; see `report.traffic_of`."""
        found = simulate(
            traffic,
            partial(make_scheduler, _plain(self._opened.resolved)),
            self._rehearsed().step_s,
            replicas=replicas,
        )
        line = saturation(found, traffic.rate)
        if line is not None:
            self._notes.append(line)
        if replicas > 1:
            self._notes.append(
                f"replicas: each of the {replicas} has a machine like this one; they share no cores"
            )
        return {**traffic_of(found, slo), "replicas": replicas, "saturated": line is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, in sentences."""
        return tuple(self._notes)

    def _rehearsed(self) -> Speeds:
        if self._speeds is None:
            resolved = self._opened.resolved
            loads: list[float] = []
            model = rehearse(self._opened, loads.append)
            if resolved.backend == "native" and loads:
                self._notes += disturbance(loads[0], resolved.threads)
            self._limits = machine_of(model.limits)
            self._speeds = Speeds(model, self._opened.resolved.step_limits.max_tokens)
        return self._speeds
