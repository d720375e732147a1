"""The prefix index: which block holds the KV of a key, and why a lookup found nothing.

The reasons need memory of what is no longer there: the keys evicted last, and the heads of prompts seen last.
These memories are bounded, and each tenant's are its own: a tenant that could tell how far its prompt agrees
with another's would read that token by token.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from struct import pack
from typing import TypeVar

from headrace.base.clock import now_s
from headrace.base.errors import InvariantError
from headrace.base.ids import BlockId, BlockKey
from headrace.base.metrics.timeline import Differing, PrefixResult
from headrace.host.kv.keys import Domain, KeyChain

K = TypeVar("K")
V = TypeVar("V")

MEMORY = 4096
"""Entries that each memory of the past keeps at least."""
HEAD_SHARE = 4
"""Prompts that agree in 1/HEAD_SHARE of a block, but not in a whole one, count as too short to share."""


AROUND = 8
"""Ids told before and after the first one that differs."""


class PrefixOutcome(Enum):
    """What a prefix lookup of a new request found, and if nothing, why."""

    HIT = "hit"
    NO_COMMON_PREFIX = "no_common_prefix"
    SHORTER_THAN_BLOCK = "shorter_than_block"
    EVICTED = "evicted"
    OTHER_ADAPTER = "other_adapter"
    OTHER_SALT = "other_salt"
    OTHER_KV_DOMAIN = "other_kv_domain"
    SWITCHED_OFF = "switched_off"
    PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStats:
    """Counts since start."""

    num_queries: int
    query_tokens: int
    hit_tokens: int
    evictions: int
    outcomes: tuple[tuple[PrefixOutcome, int], ...]


class PrefixIndex:
    """Maps block keys to blocks.

    Args:
        num_blocks: blocks of the pool.
        block_size: positions of a block.
        clock_s: monotonic seconds, to say how long ago a block was evicted.
    """

    def __init__(self, num_blocks: int, block_size: int, clock_s: Callable[[], float] = now_s) -> None:
        self.block_by_key: dict[BlockKey, BlockId] = {}
        self.num_evictions = 0
        self._clock_s = clock_s
        self._size = block_size
        self._bound = max(MEMORY, 4 * num_blocks)
        self._publishers: dict[BlockKey, str] = {}
        """Whose block it is, of the indexed ones."""
        self._evicted: OrderedDict[BlockKey, tuple[str, float]] = OrderedDict()
        """With the tenants whose blocks they were, and the moment."""
        self._heads: OrderedDict[bytes, Domain | None] = OrderedDict()
        self._nexts: OrderedDict[tuple[str, bytes], Sequence[int]] = OrderedDict()
        """(tenant, parent key) -> tokens of the block that the tenant published last after it."""

    def find(self, keys: Sequence[BlockKey], num_blocks: int) -> list[BlockId]:
        """The blocks of the longest indexed prefix of `keys[:num_blocks]`."""
        found: list[BlockId] = []
        for key in keys[:num_blocks]:
            block = self.block_by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def insert(self, key: BlockKey, block: BlockId, tenant: str) -> bool:
        """Index the tenant's block; False when another block already has this content."""
        if key in self.block_by_key:
            return False
        self.block_by_key[key] = block
        self._publishers[key] = tenant
        self._evicted.pop(key, None)
        return True

    def evict(self, key: BlockKey) -> None:
        """The block of this key is about to be used for something else."""
        tenant = self.withdraw(key)
        self.num_evictions += 1
        _remember(self._evicted, key, (tenant, self._clock_s()), self._bound)

    def withdraw(self, key: BlockKey) -> str:
        """Find the block of this key no more; whose it was.

        Raises:
            InvariantError: it is not in the index.
        """
        if self.block_by_key.pop(key, None) is None:
            raise InvariantError("took a block out of the index whose key is not in it")
        return self._publishers.pop(key)

    def remember(self, chain: KeyChain, number: int, tokens: Sequence[int]) -> None:
        """Block `number` of this sequence was published; `tokens` are those of the sequence."""
        block = tokens[number * self._size : (number + 1) * self._size]
        _remember(self._nexts, (chain.tenant, chain.parent(number)), block, self._bound)

    def evicted_s(self, key: BlockKey | None, tenant: str) -> float | None:
        """Seconds since the tenant's block of this key was evicted; None: it was not, as far as is known."""
        found = None if key is None else self._evicted.get(key)
        return self._clock_s() - found[1] if found is not None and found[0] == tenant else None

    def differs(self, chain: KeyChain, number: int, tokens: Sequence[int]) -> Differing | None:
        """The first of the prompt's `tokens` that differs from a block `number` of this tenant.

        That block is the one that the tenant published last after the blocks before it; None: it has none, or
        none that differs. The key of those blocks covers the domain, too.
        """
        start = number * self._size
        known = self._nexts.get((chain.tenant, chain.parent(number)), ())
        pairs = zip(known, tokens[start : start + self._size], strict=False)
        found = next((i for i, (old, token) in enumerate(pairs) if old != token), None)
        if found is None:
            return None
        at = start + found
        return Differing(
            at=at,
            before=tuple(tokens[max(0, at - AROUND) : at]),
            own=tuple(tokens[at : at + AROUND]),
            cached=tuple(known[found : found + AROUND]),
        )

    def explain(
        self, tokens: Sequence[int], chain: KeyChain, *, is_evicted: bool, has_hit: bool
    ) -> PrefixOutcome:
        """Why the lookup ended where it did; also remembers the head of this prompt.

        Of what other tenants had cached, it tells no more than a hit does.

        Args:
            tokens: the prompt.
            chain: its domain and tenant.
            is_evicted: the first key that was not found is that of a block of the tenant that was evicted.
            has_hit: whether at least one block was found.
        """
        size, domain, tenant = self._size, chain.domain, chain.tenant
        part = _head(tokens[: max(1, size // HEAD_SHARE)], tenant, domain.salt)
        whole = _head(tokens[:size], tenant) if len(tokens) >= size else None
        outcome = PrefixOutcome.EVICTED if is_evicted else self._reason(domain, has_hit, part, whole)
        _remember(self._heads, part, None, self._bound)
        if whole is not None:
            _remember(self._heads, whole, domain, self._bound)
        return outcome

    def _reason(self, domain: Domain, has_hit: bool, part: bytes, whole: bytes | None) -> PrefixOutcome:
        if has_hit:
            return PrefixOutcome.HIT
        seen = self._heads.get(whole) if whole is not None else None
        if seen is not None and seen != domain:
            if seen.adapter != domain.adapter:
                return PrefixOutcome.OTHER_ADAPTER
            return PrefixOutcome.OTHER_SALT if seen.salt != domain.salt else PrefixOutcome.OTHER_KV_DOMAIN
        return PrefixOutcome.SHORTER_THAN_BLOCK if part in self._heads else PrefixOutcome.NO_COMMON_PREFIX


class PrefixLookups:
    """Counts lookups of new requests by outcome."""

    def __init__(self, index: PrefixIndex, block_size: int, is_on: bool) -> None:
        self._index = index
        self._size = block_size
        self._is_on = is_on
        self._num_queries = self._query_tokens = self._hit_tokens = 0
        self._outcomes: Counter[PrefixOutcome] = Counter()
        self.latest: PrefixResult | None = None

    def count(self, tokens: Sequence[int], chain: KeyChain, found: int, max_cached: int | None) -> None:
        """Count one lookup that found `found` blocks; `max_cached` as in `KVLedger.open`."""
        self._num_queries += 1
        self._query_tokens += len(tokens)
        self._hit_tokens += found * self._size
        evicted_s = None
        if not self._is_on:
            outcome = PrefixOutcome.SWITCHED_OFF
        elif max_cached is not None:
            outcome = PrefixOutcome.PROMPT_LOGPROBS
        else:
            usable = (len(tokens) - 1) // self._size
            missed = chain.keys[found] if found < usable else None
            evicted_s = self._index.evicted_s(missed, chain.tenant)
            is_evicted = evicted_s is not None
            outcome = self._index.explain(tokens, chain, is_evicted=is_evicted, has_hit=found > 0)
        self._outcomes[outcome] += 1
        self.latest = PrefixResult(
            outcome=outcome.value,
            prompt_tokens=len(tokens),
            cached_tokens=found * self._size,
            differs=self._index.differs(chain, found, tokens),
            evicted_s=evicted_s,
        )

    def stats(self, evictions: int) -> PrefixStats:
        """Counts since start."""
        return PrefixStats(
            num_queries=self._num_queries,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            evictions=evictions,
            outcomes=tuple((outcome, self._outcomes[outcome]) for outcome in PrefixOutcome),
        )


def _head(tokens: Sequence[int], *whose: str) -> bytes:
    """A digest of a prompt's first tokens, of these names only."""
    h = sha256(pack(f"<{len(tokens)}q", *tokens))
    for name in whose:
        h.update(sha256(name.encode()).digest())
    return h.digest()[:16]


def _remember(memory: OrderedDict[K, V], key: K, value: V, bound: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > bound:
        memory.popitem(last=False)
