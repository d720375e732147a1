"""The prefix index: which block holds the KV of a key, and why a lookup found nothing.

The reasons need memory of what is no longer there: the keys evicted last, and the heads of prompts seen last.
Both memories are bounded.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from struct import pack
from typing import TypeVar

from headrace.base.errors import InvariantError
from headrace.base.ids import BlockId, BlockKey
from headrace.base.metrics.timeline import PrefixResult
from headrace.host.kv.keys import Domain, KeyChain

K = TypeVar("K")
V = TypeVar("V")

MEMORY = 4096
"""Entries that each memory of the past keeps at least."""
HEAD_SHARE = 4
"""Prompts that agree in 1/HEAD_SHARE of a block, but not in a whole one, count as too short to share."""


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
    """Maps block keys to blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_by_key: dict[BlockKey, BlockId] = {}
        self.num_evictions = 0
        self._size = block_size
        self._bound = max(MEMORY, 4 * num_blocks)
        self._evicted: OrderedDict[BlockKey, None] = OrderedDict()
        self._heads: OrderedDict[bytes, Domain | None] = OrderedDict()
        self._nexts: OrderedDict[bytes, Sequence[int]] = OrderedDict()
        """Parent key -> tokens of the block published last after it."""

    def find(self, keys: Sequence[BlockKey], num_blocks: int) -> list[BlockId]:
        """The blocks of the longest indexed prefix of `keys[:num_blocks]`."""
        found: list[BlockId] = []
        for key in keys[:num_blocks]:
            block = self.block_by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def insert(self, key: BlockKey, block: BlockId) -> bool:
        """Index the block; False when another block already has this content."""
        if key in self.block_by_key:
            return False
        self.block_by_key[key] = block
        self._evicted.pop(key, None)
        return True

    def evict(self, key: BlockKey) -> None:
        """The block of this key is about to be used for something else."""
        if self.block_by_key.pop(key, None) is None:
            raise InvariantError("evicted a block whose key is not in the index")
        self.num_evictions += 1
        _remember(self._evicted, key, None, self._bound)

    def remember(self, parent: bytes, tokens: Sequence[int]) -> None:
        """A block with these tokens was published after `parent`."""
        _remember(self._nexts, parent, tokens, self._bound)

    def differs_at(self, parent: bytes, tokens: Sequence[int]) -> int | None:
        """The first token that differs from the block published last after `parent`; None: none known."""
        pairs = zip(self._nexts.get(parent, ()), tokens, strict=False)
        return next((i for i, (known, token) in enumerate(pairs) if known != token), None)

    def explain(
        self, tokens: Sequence[int], domain: Domain, missed: BlockKey | None, has_hit: bool
    ) -> PrefixOutcome:
        """Why the lookup ended where it did; also remembers the head of this prompt.

        Args:
            tokens: the prompt.
            domain: its domain.
            missed: the first key that was looked up and not found; None when there was none.
            has_hit: whether at least one block was found.
        """
        size = self._size
        part = self._head(tokens[: max(1, size // HEAD_SHARE)])
        whole = self._head(tokens[:size]) if len(tokens) >= size else None
        outcome = self._reason(domain, missed, has_hit, (part, whole))
        _remember(self._heads, part, None, self._bound)
        if whole is not None:
            _remember(self._heads, whole, domain, self._bound)
        return outcome

    def _reason(
        self, domain: Domain, missed: BlockKey | None, has_hit: bool, heads: tuple[bytes, bytes | None]
    ) -> PrefixOutcome:
        part, whole = heads
        if missed is not None and missed in self._evicted:
            return PrefixOutcome.EVICTED
        if has_hit:
            return PrefixOutcome.HIT
        seen = self._heads.get(whole) if whole is not None else None
        if seen is not None and seen != domain:
            if seen.adapter != domain.adapter:
                return PrefixOutcome.OTHER_ADAPTER
            return PrefixOutcome.OTHER_SALT if seen.salt != domain.salt else PrefixOutcome.OTHER_KV_DOMAIN
        return PrefixOutcome.SHORTER_THAN_BLOCK if part in self._heads else PrefixOutcome.NO_COMMON_PREFIX

    @staticmethod
    def _head(tokens: Sequence[int]) -> bytes:
        return sha256(pack(f"<{len(tokens)}q", *tokens)).digest()[:16]


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
        if not self._is_on:
            outcome = PrefixOutcome.SWITCHED_OFF
        elif max_cached is not None:
            outcome = PrefixOutcome.PROMPT_LOGPROBS
        else:
            usable = (len(tokens) - 1) // self._size
            missed = chain.keys[found] if found < usable else None
            outcome = self._index.explain(tokens, chain.domain, missed, found > 0)
        self._outcomes[outcome] += 1
        done = found * self._size
        differs = self._index.differs_at(chain.parent(found), tokens[done : done + self._size])
        self.latest = PrefixResult(
            outcome=outcome.value,
            prompt_tokens=len(tokens),
            cached_tokens=done,
            differs_at=None if differs is None else done + differs,
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


def _remember(memory: OrderedDict[K, V], key: K, value: V, bound: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > bound:
        memory.popitem(last=False)
