"""TTFT, TPOT, ITL, E2EL, queue time, throughput, goodput and acceptance, as functions of moments and counts.

Moments are seconds on one clock; only differences count. Whoever measures says where: a client's arrival is
the moment it sent the request and its outputs are what it received; the server's arrival is the moment the
engine took the request in, and its outputs are what the engine gave. The formulas are those of
`vllm bench serve`, so that figures can be compared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


def ttft_s(arrival_s: float, first_token_s: float) -> float:
    """Time to first token: arrival to the first output that has a token."""
    return first_token_s - arrival_s


def e2el_s(arrival_s: float, end_s: float) -> float:
    """End-to-end latency: arrival to the end of the answer."""
    return end_s - arrival_s


def queue_s(arrival_s: float, first_scheduled_s: float) -> float:
    """Queue time: arrival to the first step that works on the request."""
    return first_scheduled_s - arrival_s


def tpot_s(first_token_s: float, end_s: float, num_tokens: int) -> float | None:
    """Time per output token of one answer, the first excluded: (E2EL - TTFT) / (tokens - 1).

    None for an answer of fewer than two tokens, which has none. It is a mean over the answer, so several
    tokens in one output change nothing.
    """
    return (end_s - first_token_s) / (num_tokens - 1) if num_tokens > 1 else None


def itls_s(outputs_s: Iterable[float]) -> tuple[float, ...]:
    """Inter-token latencies of one answer: the gaps between its outputs, in order.

    An output may bring several tokens; it is one output, and the gap counts once. That is what a reader sees.
    """
    return tuple(later - earlier for earlier, later in pairwise(outputs_s))


def throughput(count: float, seconds: float) -> float:
    """Requests or tokens a second over a measurement: from the first arrival to the last end."""
    return count / seconds if seconds > 0.0 else 0.0


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that `percent` % of the values do not exceed, interpolated linearly between neighbours.

    numpy's default method (type 7 of Hyndman and Fan 1996).

    Raises:
        ValueError: there are no values, or `percent` is not in [0, 100].
    """
    ordered = sorted(values)
    if not ordered or not 0.0 <= percent <= 100.0:
        raise ValueError(f"no percentile {percent:g} of {len(ordered)} values: give 1 or more, and 0 to 100")
    at = (len(ordered) - 1) * percent / 100.0
    below = min(int(at), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The latencies of one answered request, in seconds."""

    ttft_s: float
    e2el_s: float
    tpot_s: float | None = None
    """None: it has fewer than two tokens."""
    itls_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, arrival_s: float, outputs_s: Sequence[float], num_tokens: int) -> "Latency":
        """From the moments of its outputs, of which the last ends it.

        Args:
            arrival_s: when it arrived.
            outputs_s: when each output with tokens came, in order.
            num_tokens: tokens of all outputs.

        Raises:
            ValueError: there was no output: such a request failed, and has no latency.
        """
        if not outputs_s:
            raise ValueError("a request without outputs has no latency; count it with those that failed")
        first_s, end_s = outputs_s[0], outputs_s[-1]
        return cls(
            ttft_s=ttft_s(arrival_s, first_s),
            e2el_s=e2el_s(arrival_s, end_s),
            tpot_s=tpot_s(first_s, end_s, num_tokens),
            itls_s=itls_s(outputs_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A service level objective: upper bounds in seconds, the bound itself included; None bounds nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    itl_s: float | None = None
    """Of the longest gap between two outputs of an answer: how long it may stand still."""

    def is_met(self, latency: Latency) -> bool:
        """Whether one request keeps every bound. An answer without a TPOT keeps every bound on it."""
        pairs = (
            (latency.ttft_s, self.ttft_s),
            (latency.tpot_s, self.tpot_s),
            (latency.e2el_s, self.e2el_s),
            (max(latency.itls_s, default=None), self.itl_s),
        )
        return all(most is None or value is None or value <= most for value, most in pairs)


def goodput(latencies: Iterable[Latency], slo: Slo, seconds: float) -> float:
    """Requests a second that were answered and keep the objective; failed ones are not among `latencies`."""
    return throughput(sum(map(slo.is_met, latencies)), seconds)


def acceptance_rate(num_accepted: int, num_drafts: int) -> float | None:
    """Share of drafted tokens that were accepted; None: nothing was drafted."""
    return num_accepted / num_drafts if num_drafts else None


def tokens_per_verification(num_accepted: int, num_verifications: int) -> float | None:
    """Tokens that a row with drafts gives: those accepted and the one drawn after them; None: no such row."""
    return 1.0 + num_accepted / num_verifications if num_verifications else None


def acceptance_by_position(
    num_accepted: Sequence[int], num_drafts: Sequence[int]
) -> tuple[float | None, ...]:
    """Of the drafts at each position (the first after the last known token is 0), the share accepted.

    A draft counts as accepted only when all before it were, so the shares of a fixed depth never rise.
    """
    return tuple(acceptance_rate(*counts) for counts in zip(num_accepted, num_drafts, strict=True))
