"""Content addresses of full blocks: SHA-256 chained over domain, parent and tokens.

    root = H(tag, domain fields)    key[0] = H(root, tokens of block 0)    key[i] = H(key[i-1], tokens of
    block i)

Every field of the domain is tagged and length-prefixed and token ids have a fixed width, so two different
inputs never give the same bytes. A cryptographic hash is not an option to switch off: a key that can be
guessed or that collides would hand one tenant's KV to another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import pack

from headrace.base.ids import AdapterId, BlockKey
from headrace.base.request import Request

_VERSION = b"headrace/block-key/1"


@dataclass(frozen=True, slots=True)
class Domain:
    """What KV depends on besides the tokens, and who may share it."""

    adapter: AdapterId | None = None
    salt: str = ""
    kv_domain: str = ""

    @classmethod
    def of(cls, request: Request) -> "Domain":
        """The domain of a request."""
        return cls(request.adapter, request.salt, request.kv_domain)

    def root(self) -> bytes:
        """The parent of the first block's key, 32 bytes."""
        h = sha256(_VERSION)
        adapter = b"\0" if self.adapter is None else b"\1" + self.adapter.encode()
        for tag, value in ((b"A", adapter), (b"S", self.salt.encode()), (b"K", self.kv_domain.encode())):
            h.update(tag + pack("<Q", len(value)) + value)
        return h.digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> BlockKey:
    """The key of one full block after the block (or root) with key `parent`."""
    return BlockKey(sha256(parent + pack(f"<{len(tokens)}q", *tokens)).digest())


class KeyChain:
    """The keys of one sequence, extended as its tokens grow; never rehashed from the start.

    The tokens handed to `extend` must be those of one sequence that only grows: keys already made are not
    looked at again.

    Args:
        domain: what the keys cover besides the tokens.
        block_size: tokens of a block.
        tenant: whose sequence it is. No part of the keys, as tenants of one domain share blocks; but what
            becomes of a lookup is told in terms of the tenant's own prompts.
    """

    __slots__ = ("_root", "_size", "domain", "keys", "tenant")

    def __init__(self, domain: Domain, block_size: int, tenant: str = "") -> None:
        self.domain = domain
        self.tenant = tenant
        self.keys: list[BlockKey] = []
        self._root = domain.root()
        self._size = block_size

    def extend(self, tokens: Sequence[int], num_blocks: int) -> list[BlockKey]:
        """Make sure that the first `num_blocks` full blocks have keys; returns all keys made so far.

        Cost: one hash per new block, nothing when there is none.
        """
        keys, size = self.keys, self._size
        for i in range(len(keys), num_blocks):
            parent = keys[-1] if keys else self._root
            keys.append(block_key(parent, tokens[i * size : (i + 1) * size]))
        return keys

    def parent(self, block: int) -> bytes:
        """What the key of block number `block` follows; the keys before it are made."""
        return self.keys[block - 1] if block else self._root

    def adopt(self, other: "KeyChain", num_blocks: int) -> None:
        """Take over the keys of a sequence whose first `num_blocks` blocks are the same."""
        if len(self.keys) < num_blocks:
            self.keys = other.keys[:num_blocks]
