"""Seeds of choices and of requests that bring none: pure functions, so that a request can be repeated."""

import hashlib

SEED_BITS = 63


def choice_seed(seed: int, index: int) -> int:
    """Seed of choice `index` of a request: the request's own for 0, else a hash of both."""
    return seed if index == 0 else _hash(b"choice", seed, index)


def request_seed(engine_seed: int, counter: int) -> int:
    """Seed of the `counter`-th request that brings none."""
    return _hash(b"request", engine_seed, counter)


def _hash(tag: bytes, a: int, b: int) -> int:
    digest = hashlib.blake2b(
        a.to_bytes(16, "little", signed=True) + b.to_bytes(8, "little"), digest_size=8, person=tag
    )
    return int.from_bytes(digest.digest(), "little") >> (64 - SEED_BITS)
