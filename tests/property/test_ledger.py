"""Random operations on the ledger: references add up after each, and a hit always has the same history."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId
from headrace.host.kv.keys import Domain, KeyChain
from headrace.host.kv.ledger import KVLedger


class Model:
    """A ledger beside the plain truth: what each block holds, position by position."""

    def __init__(self, rng: Random, num_blocks: int, size: int):
        self.rng, self.size = rng, size
        self.ledger = KVLedger(num_blocks, size)
        self.content: list[list[Any]] = [[None] * size for _ in range(num_blocks)]
        self.tokens: dict[RequestId, list[int]] = {}
        self.valid: dict[RequestId, int] = {}
        self.chains: dict[RequestId, KeyChain] = {}
        self.num = 0

    def name(self) -> RequestId:
        self.num += 1
        return RequestId(f"r{self.num}")

    def open(self):
        name = self.name()
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 4 * self.size + 2))]
        domain = Domain(salt=self.rng.choice(["", "s"]))
        chain = KeyChain(domain, self.size)
        free = self.ledger.available_blocks
        probed, unheld = self.ledger.probe(tokens, chain)
        cached = self.ledger.open(name, tokens, chain)
        assert cached == probed < len(tokens)
        assert self.ledger.available_blocks == free - unheld
        self.tokens[name], self.valid[name], self.chains[name] = tokens, cached, chain
        self.read(name)

    def fork(self):
        if not self.tokens:
            return
        parent = self.rng.choice(sorted(self.tokens))
        num = self.rng.randrange(self.valid[parent] + 1)
        name = self.name()
        chain = KeyChain(self.chains[parent].domain, self.size)
        self.ledger.fork(parent, name, chain, num)
        self.tokens[name] = [*self.tokens[parent][:num], self.rng.randrange(2)]
        self.valid[name], self.chains[name] = num, chain
        self.read(name)

    def write(self):
        if not self.tokens:
            return
        name = self.rng.choice(sorted(self.tokens))
        tokens, start = self.tokens[name], self.valid[name]
        tokens.extend(self.rng.randrange(2) for _ in range(self.rng.randrange(3)))
        end = self.rng.randrange(start, len(tokens)) + 1 if start < len(tokens) else start
        if end == start:
            return
        before = self.ledger.available_blocks
        grant = self.ledger.reserve(name, start, end)
        if grant is None:
            assert self.ledger.available_blocks == before
            return
        for move in grant.moves:
            assert isinstance(move.src, int)
            assert isinstance(move.dst, int)
            self.content[move.dst] = list(self.content[move.src])
        self.ledger.check_writable(name, start, end)
        table = self.ledger.table(name)
        root = self.chains[name].domain
        for p in range(start, end):
            self.content[table[p // self.size]][p % self.size] = (root, tuple(tokens[: p + 1]))
        self.valid[name] = end
        if self.rng.random() < 0.8:
            self.ledger.publish(name, tokens, end)
        self.read(name)

    def close(self):
        if self.tokens:
            name = self.rng.choice(sorted(self.tokens))
            assert self.ledger.close(name)
            assert not self.ledger.close(name)
            del self.tokens[name], self.valid[name], self.chains[name]

    def read(self, name):
        table, root = self.ledger.table(name), self.chains[name].domain
        for p in range(self.valid[name]):
            entry = self.content[table[p // self.size]][p % self.size]
            assert entry == (root, tuple(self.tokens[name][: p + 1]))


@given(st.integers(0, 2**32), st.integers(6, 20), st.integers(1, 5))
def test_random_operations_keep_books_and_contents_right(seed, num_blocks, size):
    model = Model(Random(seed), num_blocks, size)
    for _ in range(120):
        getattr(model, model.rng.choice(["open", "write", "write", "write", "fork", "close"]))()
        model.ledger.check()
    for name in list(model.tokens):
        model.read(name)
        model.ledger.close(name)
    model.ledger.check()
    assert model.ledger.free_blocks + model.ledger.cached_blocks == num_blocks


def test_a_refused_reservation_changes_nothing():
    """A fork that outlives its parent wants to write a block that hits find, and one that is not there."""
    ledger = KVLedger(2, 4)
    parent, child, tokens = RequestId("parent"), RequestId("child"), list(range(9))
    chain = KeyChain(Domain(), 4)
    ledger.open(parent, tokens, chain)
    ledger.reserve(parent, 0, 8)
    ledger.publish(parent, tokens, 8)
    ledger.fork(parent, child, KeyChain(Domain(), 4), 7)
    ledger.close(parent)
    before = ledger.probe(tokens, chain), ledger.free_blocks, ledger.table(child)
    assert ledger.reserve(child, 7, 9) is None
    assert (ledger.probe(tokens, chain), ledger.free_blocks, ledger.table(child)) == before
    assert before[0][0] == 8


def test_misuse_is_an_error():
    ledger = KVLedger(4, 2)
    chain = KeyChain(Domain(), 2)
    name = RequestId("a")
    ledger.open(name, [1, 2, 3], chain)
    with pytest.raises(InvariantError, match="already has a block table"):
        ledger.open(name, [1], chain)
    with pytest.raises(InvariantError, match="cannot reserve"):
        ledger.reserve(name, 2, 3)
    with pytest.raises(InvariantError, match="no block table"):
        ledger.reserve(RequestId("b"), 0, 1)
    with pytest.raises(InvariantError, match="cannot publish"):
        ledger.publish(name, [1, 2], 4)
