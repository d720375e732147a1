# ruff: noqa: INP001  (a script beside the C++ test, not a package)
"""Print the table of test_pack.cc: hashes of what the `gguf` package makes of the test's random blocks.

Run by hand when a source type is added: `python native/tests/gguf_hashes.py`. The bytes come from the same
generator as in the test (64-bit xorshift); the top exponent bit of every half is cleared: finite scales.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

ROWS, COLUMNS = 21, 512
# source type -> (columns and bytes of a block, offsets of halves in it)
BLOCKS = {
    Type.Q4_0: (32, 18, (0,)),
    Type.Q4_1: (32, 20, (0, 2)),
    Type.Q5_0: (32, 22, (0,)),
    Type.Q5_1: (32, 24, (0, 2)),
    Type.Q8_0: (32, 34, (0,)),
    Type.Q2_K: (256, 84, (80, 82)),
    Type.Q3_K: (256, 110, (108,)),
    Type.Q4_K: (256, 144, (0, 2)),
    Type.Q5_K: (256, 176, (0, 2)),
    Type.Q6_K: (256, 210, (208,)),
    Type.F16: (1, 2, (0,)),
    Type.BF16: (1, 2, (0,)),
}


def random_bytes(count: int, seed: int) -> np.ndarray:
    """Bytes 16..23 of each state of a 64-bit xorshift generator."""
    mask, state, out = (1 << 64) - 1, (seed * 0x9E3779B97F4A7C15 + 1) & ((1 << 64) - 1), bytearray()
    for _ in range(count):
        state ^= (state << 13) & mask
        state ^= state >> 7
        state ^= (state << 17) & mask
        out.append(state >> 16 & 255)
    return np.frombuffer(bytes(out), np.uint8).copy()


def fnv1a(data: bytes) -> int:
    """64-bit FNV-1a hash over little-endian 32-bit words."""
    value = 0xCBF29CE484222325
    for word in np.frombuffer(data, "<u4"):
        value = (value ^ int(word)) * 0x100000001B3 & ((1 << 64) - 1)
    return value


def main() -> None:
    """Print one line per source type."""
    for source, (columns, size, halves) in BLOCKS.items():
        blocks = random_bytes(ROWS * COLUMNS // columns * size, int(source)).reshape(-1, size)
        for at in halves:
            blocks[:, at + 1] &= 0xBF
        values = dequantize(blocks.reshape(ROWS, -1), source)
        digest = fnv1a(np.ascontiguousarray(values, "<f4").tobytes())
        sys.stdout.write(f"    {{{int(source)}, 0x{digest:016x}}},  // {source.name}\n")


if __name__ == "__main__":
    main()
