"""What this machine can do at most, measured and kept: the roofs of the roofline.

A measurement takes a fraction of a second and 256 MiB of memory. What is kept, under the cache folder by the
processor's model, the allowed cores, the threads and the release, is the best of all measurements: other work
on the machine makes one worse, never better. Starts measure until several agree with the best.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.base.env import cache_dir
from headrace.compute.device.kinds.cpu import affinity, cgroup_quota

READ_BYTES = 256 << 20
"""What is read to find the rate of memory; far more than a last-level cache holds."""
AGREEING = 3
"""Measurements near the best after which starts only read the file."""
NEAR = 0.9
MEASUREMENTS = 20
"""After so many the best counts even if none came near it: the machine is never quiet."""
_VERSION = 2
_RATES = ("read_bytes_s", "fma_ops_s", "dot_ops_s", "tile_ops_s", "maddubs_ops_s")
_COUNT, _AGREED = "measurements", "agreeing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Rates of all threads together. Operations: a multiply-add counts as two."""

    threads: int
    read_bytes_s: float
    """Bytes a second from memory."""
    fma_ops_s: float
    """float32 multiply-adds."""
    pair_ops_s: float
    """Products of two bfloat16 added up in float32: twice as many where one instruction takes pairs."""
    int8_ops_s: float
    """8-bit products added up, by the fastest instruction that the kernels may use; with tile registers (AMX)
    by groups of 32 columns, whose sums go through memory."""
    int16_ops_s: float
    """16-bit products added up, as attention does it: half of what vector registers do with 8 bits."""
    source: str
    """`measured`, `cached` or `assumed`."""


ASSUMED = Limits(
    threads=1,
    read_bytes_s=10e9,
    fma_ops_s=60e9,
    pair_ops_s=60e9,
    int8_ops_s=120e9,
    int16_ops_s=60e9,
    source="assumed",
)
"""One core of a common server; where nothing was measured."""


def machine_limits(threads: int, isa: str, *, folder: Path | None = None, probe: bool = True) -> Limits:
    """The limits of this machine for so many threads and an instruction set of the kernels.

    Args:
        threads: compute threads.
        isa: instruction set (`avx512`, `avx2` …); byte dot products count only where the kernels use them.
        folder: where they are kept; None: under the cache folder.
        probe: measure what is not known well enough yet; else take what is known, or assume.
    """
    path = (folder or cache_dir() / "limits") / f"{_key(threads)}.json"
    known = _read(path)
    is_known = known is not None and (known[_AGREED] >= AGREEING or known[_COUNT] >= MEASUREMENTS)
    if known is not None and (is_known or not probe):
        return _limits(known, threads, isa, "cached")
    found = _measure(threads) if probe else None
    if found is not None:
        rates = _better(known, found)
        _write(path, rates)
        return _limits(rates, threads, isa, "measured")
    if known is not None:
        return _limits(known, threads, isa, "cached")
    assumed = dict.fromkeys(_RATES, 0.0) | {"read_bytes_s": ASSUMED.read_bytes_s * threads}
    return _limits(assumed, threads, isa, "assumed")


def _pair_ops_s(fma_ops_s: float, isa: str) -> float:
    native = _native()
    return 2.0 * fma_ops_s if native is not None and native.multiplies_pairs(isa) else fma_ops_s


def _has_tiles() -> bool:
    """A system may refuse tile registers that the processor has, and a compiler may not know them."""
    native = _native()
    return native is not None and native.multiplies_tiles("avx512")


def _native() -> Any:
    """The native kernels; None: they are not built."""
    try:
        return import_module("headrace._native")
    except ImportError:
        return None


def _better(known: dict[str, float] | None, found: dict[str, float]) -> dict[str, float]:
    """The best of what was known and what was found, and how many measurements come near it."""
    before = known or dict.fromkeys((*_RATES, _COUNT, _AGREED), 0.0)
    best = {name: max(found[name], before[name]) for name in _RATES}
    agreed = before[_AGREED] if all(before[name] >= NEAR * best[name] for name in _RATES) else 0.0
    agreed += all(found[name] >= NEAR * best[name] for name in _RATES)
    return best | {_COUNT: before[_COUNT] + 1, _AGREED: agreed}


def _limits(rates: dict[str, float], threads: int, isa: str, source: str) -> Limits:
    """Limits from rates, of which those of arithmetic may be 0: then they are assumed by threads."""
    fma = rates["fma_ops_s"] or ASSUMED.fma_ops_s * threads
    bytewise = {"avx512": rates["dot_ops_s"], "avx2": rates["maddubs_ops_s"]}.get(isa, 0.0)
    bytewise = bytewise or rates["maddubs_ops_s"] or 2.0 * fma
    tiles = rates["tile_ops_s"] if isa == "avx512" else 0.0
    return Limits(
        threads=threads,
        read_bytes_s=rates["read_bytes_s"],
        fma_ops_s=fma,
        pair_ops_s=_pair_ops_s(fma, isa),
        int8_ops_s=max(bytewise, tiles),
        int16_ops_s=bytewise / 2.0,
        source=source,
    )


def _measure(threads: int) -> dict[str, float] | None:
    """None without the native kernels, or without the memory."""
    native = _native()
    try:
        return None if native is None else native.machine_limits(threads, READ_BYTES)
    except (MemoryError, RuntimeError):
        return None


def _key(threads: int) -> str:
    facts = [_VERSION, __version__, _processor(), _has_tiles(), sorted(affinity()), cgroup_quota(), threads]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def _processor(root: Path = Path("/")) -> list[str]:
    """What tells processors apart."""
    wanted = {"vendor_id", "cpu family", "model", "stepping", "model name", "CPU part", "flags", "Features"}
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.setdefault(name.strip(), value.strip())
    return [f"{name}={value}" for name, value in sorted(found.items())] or [os.uname().machine]


def _read(path: Path) -> dict[str, float] | None:
    try:
        found = json.loads(path.read_text())
        rates = {name: float(found[name]) for name in (*_RATES, _COUNT, _AGREED)}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rates if rates["read_bytes_s"] > 0 and min(rates.values()) >= 0 else None


def _write(path: Path, rates: dict[str, float]) -> None:
    """Put the file in place whole; a cache that cannot be written costs a measurement at the next start."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(rates))
        part.replace(path)
