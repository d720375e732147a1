"""The last requests that ended well: percentiles of a minute, and the slowest ones."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.metrics import percentile
from headrace.base.metrics.timeline import PartName
from headrace.base.terms import caller_terms
from headrace.engine.outputs import RequestOutput
from headrace.engine.timelines.store import TimelineStore

KEPT = 512
WINDOW_S = 60.0
NUM_SLOWEST = 8
PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that ended well, in seconds."""

    at_s: float
    """Monotonic."""
    request_id: str
    tenant: str
    queue_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """Arrival to the first token."""
        return self.queue_s + self.prefill_s

    @property
    def tpot_s(self) -> float | None:
        """Decode time over tokens after the first; None: there are none."""
        return self.decode_s / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        """Arrival to the end."""
        return self.queue_s + self.prefill_s + self.decode_s


class Recent:
    """The last `KEPT` of them."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=KEPT)

    def see(self, output: RequestOutput, now_s: float) -> None:
        """Note a last output, in the task of its request."""
        found = output.timings or {}
        self._ended.append(
            Ended(
                at_s=now_s,
                request_id=output.request_id,
                tenant=caller_terms().tenant.name,
                queue_s=found.get("queue_s", 0.0),
                prefill_s=found.get("prefill_s", 0.0),
                decode_s=found.get("decode_s", 0.0),
                prompt_tokens=output.usage.prompt_tokens,
                output_tokens=output.usage.completion_tokens,
            )
        )

    def tell(self, now_s: float, timelines: TimelineStore, *, with_ids: bool) -> dict[str, Any]:
        """Percentiles of the last minute in milliseconds, and the slowest of all that are kept.

        Those come with the parts of their timelines, without reasons, which may name other requests.
        """
        fresh = [e for e in self._ended if now_s - e.at_s <= WINDOW_S]
        slowest = sorted(self._ended, key=lambda e: e.e2e_s, reverse=True)[:NUM_SLOWEST]
        return {
            "window_s": WINDOW_S,
            "requests": len(fresh),
            "ttft_ms": percentiles([e.ttft_s * 1000 for e in fresh]),
            "tpot_ms": percentiles([e.tpot_s * 1000 for e in fresh if e.tpot_s is not None]),
            "e2e_ms": percentiles([e.e2e_s * 1000 for e in fresh]),
            "slowest": [
                {
                    "id": e.request_id if with_ids else "",
                    "age_s": now_s - e.at_s,
                    "parts": _parts(e, timelines),
                    "prompt_tokens": e.prompt_tokens,
                    "output_tokens": e.output_tokens,
                }
                for e in slowest
            ],
        }


def _parts(ended: Ended, timelines: TimelineStore) -> list[dict[str, Any]]:
    """Its time by the name of the part, in their order; by three phases where no timeline is remembered."""
    found = timelines.find(ended.tenant, ended.request_id)
    seconds = {PartName.QUEUE: ended.queue_s, PartName.PREFILL: ended.prefill_s}
    seconds[PartName.DECODE] = ended.decode_s
    if found is not None:
        seconds = {name: found.seconds_of(name) for name in PartName}
    return [{"name": name.value, "seconds": spent} for name, spent in seconds.items() if spent > 0.0]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Percentiles 50, 90 and 99, as everywhere (`base/metrics`); nothing for no values."""
    return {f"p{percent}": percentile(values, percent) for percent in PERCENTS if values}
