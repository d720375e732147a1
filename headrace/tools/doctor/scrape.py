"""Metrics of a server over some seconds: scraped, recorded, read again."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headrace.base.clock import now_s
from headrace.base.errors import ConfigError, DownloadError, UnreachableError
from headrace.engine.doctor.trace import Scrape, Trace, values_of

SCRAPE_S = 0.5
TIMEOUT_S = 10.0
MAX_BYTES = 16 << 20


def scrape(url: str, api_key: str | None) -> Scrape:
    """The metrics of this moment.

    Raises:
        UnreachableError: nobody answers. DownloadError: something else answers.
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
    except OSError as error:
        raise UnreachableError(url, getattr(error, "reason", error)) from error
    except ValueError as error:
        raise DownloadError(f"{url}/metrics cannot be read: {error}") from error
    return Scrape(now_s(), parse(text))


def watch(url: str, api_key: str | None, seconds: float) -> Trace:
    """Scrape for some seconds.

    Raises:
        ConfigError: the URL or the time is impossible.
        UnreachableError, DownloadError: see `scrape`.
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
    return values_of(text_string_to_metric_families(text))


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
