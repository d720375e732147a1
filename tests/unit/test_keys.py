"""Block keys: chained, complete, and different wherever two requests must not share."""

import itertools

from headrace.base.ids import AdapterId
from headrace.host.kv.keys import Domain, KeyChain, block_key


def test_every_field_of_the_domain_counts_and_fields_do_not_run_together():
    values = ("", "a", "ab", "b")
    domains = [
        Domain(adapter, salt, kind)
        for adapter, salt, kind in itertools.product((None, *map(AdapterId, values)), values, values)
    ]
    assert len({d.root() for d in domains}) == len(domains)


def test_a_key_covers_parent_and_every_token():
    root = Domain().root()
    base = block_key(root, [1, 2, 3])
    others = [
        block_key(b"x" * 32, [1, 2, 3]),
        block_key(root, [1, 2]),
        block_key(root, [1, 2, 4]),
        block_key(root, [2, 1, 3]),
        block_key(root, [0, 2, 3]),
    ]
    assert len({base, *others}) == 6
    assert len(base) == 32


def test_the_chain_grows_without_looking_back():
    tokens = list(range(20))
    whole = KeyChain(Domain(), 4).extend(tokens, 5)
    chain = KeyChain(Domain(), 4)
    for n in range(6):
        chain.extend([-1] * (4 * max(0, n - 1)) + tokens[4 * max(0, n - 1) :], n)
    assert chain.keys == whole


def test_equal_blocks_after_different_beginnings_have_different_keys():
    a = KeyChain(Domain(), 2).extend([1, 1, 5, 5], 2)
    b = KeyChain(Domain(), 2).extend([2, 2, 5, 5], 2)
    assert a[1] != b[1]
