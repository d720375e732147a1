"""Counter-based Gumbel noise: a pure function of (seed, position, token id)."""

import numpy as np
from numpy.typing import NDArray

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
ROUNDS = 10


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10 of counters [4, N] (32-bit words in uint64) under a key of two words.

    Returns:
        [4, N] words, each below 2**32. Salmon et al. 2011, section 4.
    """
    c0, c1, c2, c3 = (counter[i] & _LOW for i in range(4))
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def words(seed: int, position: int, vocab: int) -> NDArray[np.uint32]:
    """The 32 random bits of each token id below `vocab`, [V]."""
    blocks = (vocab + 3) // 4
    counter = np.zeros((4, blocks), np.uint64)
    counter[0] = np.arange(blocks, dtype=np.uint64)
    counter[1] = np.uint64(position)
    out = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return np.ascontiguousarray(out.T).reshape(-1)[:vocab].astype(np.uint32)


def gumbel(seed: int, position: int, vocab: int) -> NDArray[np.float32]:
    """Standard Gumbel noise of each token id below `vocab`, [V] float32."""
    w = words(seed, position, vocab)
    u = ((w >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -np.log(-np.log(u))
