"""Metrics of a server over some seconds: scraped, recorded, read again."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headrace.base.clock import now_s
from headrace.base.errors import ConfigError, DownloadError

SCRAPE_S = 0.5
TIMEOUT_S = 10.0
MAX_BYTES = 16 << 20


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
        values = [scrape.values[name] for scrape in self.scrapes if name in scrape.values]
        return sum(values) / len(values) if values else 0.0

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

    @cached_property
    def step_s(self) -> float:
        """Seconds of steps."""
        return self.both("headrace_phase_step_seconds")

    @cached_property
    def busy(self) -> float:
        """Share of the time in which the engine's loop worked, 0 to 1."""
        return min(1.0, max(self.share("headrace_engine_loop_seconds_total"), self.step_s / self.seconds))


def scrape(url: str, api_key: str | None) -> Scrape:
    """The metrics of this moment.

    Raises:
        DownloadError: nobody answers, or with something else.
    """
    request = urllib.request.Request(f"{url.rstrip('/')}/metrics")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read(MAX_BYTES).decode()
    except urllib.error.HTTPError as error:
        hint = "; give --api-key" if error.code == 401 else ""
        raise DownloadError(f"{url}/metrics answers {error.code}{hint}") from error
    except (OSError, ValueError) as error:
        raise DownloadError(f"{url}/metrics cannot be read: {error}; does the server run there?") from error
    return Scrape(now_s(), parse(text))


def watch(url: str, api_key: str | None, seconds: float) -> Trace:
    """Scrape for some seconds.

    Raises:
        ConfigError: the URL or the time is impossible.
        DownloadError: see `scrape`.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must begin with http:// or https://, got {url!r}", param="url")
    if not 2 * SCRAPE_S <= seconds <= 3600:
        raise ConfigError(f"--seconds must be in [{2 * SCRAPE_S:g}, 3600], got {seconds:g}", param="seconds")
    found = [scrape(url, api_key)]
    while found[-1].seconds - found[0].seconds < seconds:
        time.sleep(SCRAPE_S)
        found.append(scrape(url, api_key))
    return Trace(found)


def parse(text: str) -> dict[str, float]:
    """Samples of Prometheus text; buckets of histograms are left out."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def write_trace(path: Path, trace: Trace) -> None:
    """Record a trace: one JSON line per scrape."""
    lines = [json.dumps({"seconds": one.seconds, "values": dict(one.values)}) for one in trace.scrapes]
    path.write_text("\n".join(lines) + "\n")


def read_trace(path: Path) -> Trace:
    """A recorded trace.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        found: list[Any] = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        scrapes = [
            Scrape(float(one["seconds"]), {k: float(v) for k, v in one["values"].items()}) for one in found
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no recorded trace: {error}") from error
    return Trace(scrapes)
