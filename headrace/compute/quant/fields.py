"""Bit fields that the schemes share: half floats, nibbles, and the packed scales of the K formats."""

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
Floats = NDArray[np.floating]


def half(groups: U8, offset: int) -> Floats:
    """[G, 1] float32: the half float at byte `offset` of each group [G, bytes]."""
    return np.ascontiguousarray(groups[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def low_high(packed: U8, run: int) -> U8:
    """[G, 2 * bytes]: per run of `run` bytes first the low nibbles, then the high ones."""
    g = packed.shape[0]
    runs = packed.reshape(g, -1, 1, run)
    return np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=2, dtype=np.uint8).reshape(g, -1)


def pairs(packed: U8, run: int) -> U8:
    """[G, 4 * bytes]: per run of `run` bytes first bits 0-1 of all of them, then bits 2-3, 4-5, 6-7."""
    g = packed.shape[0]
    runs = packed.reshape(g, -1, 1, run)
    return np.concatenate([(runs >> s) & 3 for s in (0, 2, 4, 6)], axis=2, dtype=np.uint8).reshape(g, -1)


def bits(packed: U8) -> U8:
    """[G, 8 * bytes]: first bit 0 of all bytes, then bit 1 of all bytes, up to bit 7."""
    return np.concatenate([(packed >> s) & 1 for s in range(8)], axis=1, dtype=np.uint8)


def word_bits(packed: U8) -> U8:
    """[G, 8 * bytes]: bit i of the little-endian word is value i."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def scales_and_minima(packed: U8) -> tuple[Floats, Floats]:
    """[G, 8] scales and [G, 8] minima, six bits each, from the twelve bytes of Q4_K and Q5_K.

    ```
    bytes 0-3: hhssssss   scales 0-3; h: upper two bits of scales 4-7
    bytes 4-7: hhmmmmmm   minima 0-3; h: upper two bits of minima 4-7
    bytes 8-11: mmmmssss  lower four bits of scales and minima 4-7
    ```
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)
