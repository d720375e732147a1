"""Metrics of a server over some seconds, wherever they were read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from prometheus_client import Metric

from headrace.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one moment: name, or name{label="value"}, to value."""

    seconds: float
    values: Mapping[str, float]


class Trace:
    """Scrapes of one server, oldest first.

    Raises:
        ConfigError: there are fewer than two, or no time lies between them.
    """

    def __init__(self, scrapes: Sequence[Scrape]) -> None:
        if len(scrapes) < 2 or scrapes[-1].seconds <= scrapes[0].seconds:
            raise ConfigError("a trace needs two scrapes or more, with time between them; lengthen --seconds")
        self.scrapes = tuple(scrapes)
        self.seconds = scrapes[-1].seconds - scrapes[0].seconds

    def delta(self, name: str) -> float:
        """Growth of a counter; 0.0 when the server does not tell it. A restart counts from 0."""
        grown, last = 0.0, self.scrapes[0].values.get(name, 0.0)
        for scrape in self.scrapes[1:]:
            value = scrape.values.get(name, last)
            grown += value - last if value >= last else value
            last = value
        return grown

    def share(self, name: str) -> float:
        """Growth of a counter of seconds, over the seconds of the trace."""
        return self.delta(name) / self.seconds

    def mean(self, name: str) -> float:
        """A gauge on average over the scrapes; 0.0 when the server does not tell it."""
        values = self._read(name)
        return sum(values) / len(values) if values else 0.0

    def median(self, name: str) -> float:
        """A gauge as it mostly is (single scrapes fall between requests); 0.0 when it is not told."""
        values = self._read(name)
        return median(values) if values else 0.0

    def mean_observed(self, histogram: str) -> float | None:
        """Mean of what a histogram observed during the trace; None: nothing."""
        count = self.delta(f"{histogram}_count")
        return self.delta(f"{histogram}_sum") / count if count else None

    def phase(self, name: str, phase: str) -> float:
        """Growth of a counter that is told by phase."""
        return self.delta(f'{name}_total{{phase="{phase}"}}')

    def both(self, name: str) -> float:
        """Growth of a counter that is told by phase, phases together."""
        return self.phase(name, "decode") + self.phase(name, "prefill")

    def _read(self, name: str) -> list[float]:
        return [scrape.values[name] for scrape in self.scrapes if name in scrape.values]

    @cached_property
    def step_s(self) -> float:
        """Seconds of steps."""
        return self.both("headrace_phase_step_seconds")

    @cached_property
    def busy(self) -> float:
        """Share of the time in which the engine's loop worked, 0 to 1."""
        return min(1.0, max(self.share("headrace_engine_loop_seconds_total"), self.step_s / self.seconds))


def values_of(families: Iterable[Metric]) -> dict[str, float]:
    """Values by name, or by name{label="value"}; buckets of histograms are left out."""
    values: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values
