"""What can never run, how much room a sequence needs to join, and how fast the queue drains.

A sequence joins only when its known tokens and one more block fit beside the same promise to everybody who
runs: blocks are given on demand, but nobody is let in to be thrown out again at once.
"""

from collections import deque
from collections.abc import Sequence as Seq

from headrace.base.errors import CapacityError, ContextLengthError, RequestError
from headrace.base.request import Request
from headrace.base.tasks import BeamSearch, Pooling
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.sequence import Sequence

_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 60.0


def check_request(request: Request, ledger: KVLedger, limits: ScheduleLimits) -> None:
    """Refuse what can never run.

    Raises:
        RequestError: no prompt, or `max_tokens` is not set.
        ContextLengthError: prompt and `max_tokens` exceed the context limit.
        CapacityError: they exceed the KV pool.
    """
    prompt, most = len(request.prompt_ids), request.sampling.max_tokens
    if prompt == 0:
        raise RequestError("the prompt is empty; give at least one token", param="prompt")
    if most is None:
        raise RequestError("max_tokens is not resolved; set it", param="max_tokens")
    if isinstance(request.task, Pooling):
        most = 0
    if prompt + most > limits.max_model_len:
        raise ContextLengthError(
            f"prompt ({prompt} tokens) and max_tokens ({most}) need {prompt + most} tokens, "
            f"the context limit is "
            f"{limits.max_model_len}; shorten the prompt or lower max_tokens",
            param="max_tokens",
        )
    if isinstance(request.task, BeamSearch):
        _check_beams(request, request.task.width, ledger, limits)
    need, capacity = prompt + max(most, 1) - 1, ledger.capacity_tokens
    if need > capacity:
        raise CapacityError(
            f"prompt ({prompt} tokens) and max_tokens ({most}) need KV memory for {need} tokens, "
            f"the pool holds "
            f"{capacity}; shorten the prompt, lower max_tokens, or raise kv.pool_bytes",
            param="max_tokens",
        )
    tenant = request.terms.tenant
    share = share_blocks(tenant.kv_share, ledger) * ledger.block_size
    if need > share:
        raise CapacityError(
            f"prompt ({prompt} tokens) and max_tokens ({most}) need KV memory for {need} tokens, "
            f"{tenant.name!r} may hold {share} (kv_share of its key); shorten the prompt or lower max_tokens",
            param="max_tokens",
        )


def _check_beams(request: Request, width: int, ledger: KVLedger, limits: ScheduleLimits) -> None:
    """Beams run together; in the worst case they share no block."""
    tenant = request.terms.tenant
    slots = limits.max_num_seqs
    if tenant.max_running is not None:
        slots = min(slots, tenant.max_running)
    if request.terms.is_background:
        slots = min(slots, limits.max_background_seqs)
    if width > slots:
        raise CapacityError(
            f"a beam search of width {width} needs as many slots, {slots} may be had; lower the width, or "
            "raise schedule.max_num_seqs (or max_running of the key, or batch.max_lines_running)",
            param="beam_width",
        )
    num_tokens = len(request.prompt_ids) + (request.sampling.max_tokens or 1) - 1
    need, most = width * ledger.blocks_for(num_tokens), share_blocks(tenant.kv_share, ledger)
    if need > most:
        raise CapacityError(
            f"{width} beams of {num_tokens} tokens need {need} KV blocks, {most} may be had; lower the width "
            "or max_tokens, shorten the prompt, or raise kv.pool_bytes (or kv_share of the key)",
            param="beam_width",
        )


def share_blocks(share: float, ledger: KVLedger) -> int:
    """Blocks that a share of the pool is, at least one."""
    return max(1, int(share * (ledger.capacity_tokens // ledger.block_size)))


def promised_blocks(seq: Sequence, ledger: KVLedger) -> int:
    """Blocks for the sequence's known tokens and one block more, as far as it will ever need it."""
    return ledger.blocks_for(min(len(seq.tokens) + seq.pending + ledger.block_size, seq.max_positions))


def outstanding_blocks(running: Seq[Sequence], ledger: KVLedger) -> int:
    """Blocks promised to running sequences that they do not hold yet. Cost: linear in them."""
    return sum(max(0, promised_blocks(seq, ledger) - ledger.num_blocks_of(seq.request_id)) for seq in running)


class AdmissionRate:
    """How fast the queue drains while the engine works, over the last admissions."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._seen: deque[tuple[float, int]] = deque(maxlen=64)

    def pass_time(self, seconds: float) -> None:
        """A step took this long; time in which there is nothing to do does not count."""
        self._busy_s += seconds

    def note(self, prompt_tokens: int) -> None:
        """A sequence was admitted for the first time."""
        self._seen.append((self._busy_s, prompt_tokens))

    def retry_after_s(self, over_requests: int, over_tokens: int) -> float:
        """Seconds until that many requests or prompt tokens have left the queue, between 0.1 and 60."""
        if len(self._seen) < 2:
            return 1.0
        span_s = max(self._busy_s - self._seen[0][0], 1e-3)
        requests_per_s = (len(self._seen) - 1) / span_s
        tokens_per_s = max(sum(tokens for _, tokens in self._seen) / span_s, 1e-3)
        wait_s = max(over_requests / requests_per_s, over_tokens / tokens_per_s)
        return min(max(wait_s, _MIN_RETRY_S), _MAX_RETRY_S)
