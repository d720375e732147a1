"""Calls of the native module with odd arguments: `python -m tests.fuzz.natives --count 100000`.

Calls that are nearly right, and whole calls of nonsense. Each must return or raise one of `REFUSALS` within a
second; afterwards the module must still give the same bits. Child processes, so that a crash is seen. What
lies behind the checks (memory, sizes) is `native/tests/test_fuzz.cc`, under sanitizers.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace import _native
from headrace.base.env import child_environment
from tests.fuzz.mutate import NUMBERS, TEXTS

MAX_CPU_S = 1.0
MAX_EXTRA_BYTES = 1 << 30
BATCH = 5000
REFUSALS = (ValueError, TypeError, IndexError, OverflowError, MemoryError, RuntimeError, AttributeError)
"""RuntimeError: files that cannot be read. AttributeError: a batch that lacks an array."""

DTYPES = (np.int32, np.float32, np.uint8, np.uint64, np.uint32, np.int64, np.float64, np.bool_, np.float16)
WHOLE = tuple(n for n in NUMBERS if isinstance(n, int))

Call = tuple[Callable[..., Any], list[Any]]


def any_array(rng: Random) -> np.ndarray:
    """Any type, shape and contiguity."""
    shape = [rng.choice((0, 1, 2, 3, 16, 32, 33)) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3)))]
    made = np.zeros(shape, rng.choice(DTYPES))
    if made.size and rng.random() < 0.7:
        with np.errstate(all="ignore"):
            made.flat[rng.randrange(made.size)] = rng.choice((1, 7, 100))
    if rng.random() < 0.2:
        made = made.T if rng.random() < 0.5 else made[..., ::2] if made.ndim else made
    return made


def any_value(rng: Random) -> Any:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(WHOLE)
    if kind == 1:
        return rng.choice((None, True, "", "f32", rng.choice(TEXTS), b"", b"abc", [], {}, (), object()))
    if kind == 2:
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    if kind == 3:
        return tuple(any_value(rng) for _ in range(rng.randrange(6)))
    return any_array(rng)


def spoiled(rng: Random, value: Any) -> Any:
    """Another value, mostly of the same kind."""
    if rng.random() < 0.2:
        return any_value(rng)
    if isinstance(value, tuple) and value:
        at = rng.randrange(len(value))
        return (*value[:at], spoiled(rng, value[at]), *value[at + 1 :])
    if isinstance(value, np.ndarray):
        return spoiled_array(rng, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((value + 1, value - 1, -value, value * 2, rng.choice(WHOLE)))
    return any_value(rng)


def spoiled_array(rng: Random, value: np.ndarray) -> np.ndarray:
    kind = rng.randrange(6)
    if kind == 0:
        return value.astype(rng.choice(DTYPES))
    if kind == 1 and value.ndim:
        return value[rng.randrange(len(value) + 1) :]
    if kind == 2 and value.ndim:
        return np.repeat(value, 2, axis=rng.randrange(value.ndim))[..., ::2]
    if kind == 3:
        return value.reshape([*value.shape, 1][:: rng.choice((1, -1))])
    changed = value.copy()
    if changed.size:
        odd = rng.choice((-1, 0, 1, 2**31 - 1, -(2**31), 2**63, float("nan"), float("inf"), 1000))
        with np.errstate(all="ignore"):
            changed.flat[rng.randrange(changed.size)] = np.array(odd).astype(changed.dtype)
    return changed


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BLOCKS: dict[int, tuple[int, int]] = _native.source_blocks()


class World:
    """One of each object, and calls of them that are right."""

    def __init__(self, rng: Random, file: Path) -> None:
        """`file`: has 4 KiB of zeros."""
        self.rng = rng
        self.runtime = _native.Runtime(rng.choice(_native.isas()), rng.choice((1, 1, 2)), 0, False)
        self.fd = os.open(file, os.O_RDONLY)
        self.region = self.runtime.load_file(self.fd, 0, 4096, self.sums(), "read")
        self.matrix = self.runtime.pack(0, np.zeros((16, 128), np.uint8), 32, None)
        self.vector = self.runtime.vector(np.ones(32, np.float32))
        self.angles = _native.RopeTable(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32))
        self.kv = _native.kv_memory(rng.choice(("f16", "f32", "int8", "int16")), (2, 4, 1, 8, 6))
        texts, ends = np.frombuffer(b"abab", np.uint8), np.array([1, 2, 4], np.uint64)
        merges = np.frombuffer(b"a b", np.uint8)
        self.texts = [texts, ends, merges, np.array([3], np.uint64), False]
        self.pairs = _native.BytePairs(*self.texts)
        self.programs = [self.program() for _ in range(2)]
        self.finished = self.program()
        for function, arguments in self.operations(self.finished):
            function(*arguments)
        self.finished.finish((2, 0, 16))

    def close(self) -> None:
        os.close(self.fd)

    @staticmethod
    def sums() -> np.ndarray:
        return np.array([_native.checksum(np.zeros(4096, np.uint8))], np.uint64)

    def program(self) -> Any:
        made = _native.Program(self.runtime, self.kv, (8, 2, 8, 4), 1 << 14, 1 << 12)
        made.add_buffer(0, 32, False, None)
        made.add_buffer(4096, 32, False, 0)
        made.add_buffer(8192, 16, True, None)
        made.add_quant_buffer(10240, 32, False, None)
        made.add_group([self.matrix])
        return made

    def operations(self, program: Any) -> list[Call]:
        """Operations of a program, each of which fits the buffers of `program`."""
        x, y, head = (0, 0, 32), (1, 0, 32), (0, 0, 8)
        return [
            (program.embed, [0, 1.0, x]),
            (program.rms_norm, [x, self.vector, 1e-5, y, -1]),
            (program.quantize, [x, 0]),
            (program.matmul, [y, -1, 0, (0, 0, 16), None, True]),
            (program.head_norm, [x, self.vector, 1e-5, 32]),
            (program.rope, [x, self.angles, 8]),
            (program.attention, [(x, head, head), y, 0, (4, 1, 8), (0.3, 0.0, 0)]),
            (program.glu, [(0, 0, 16), (0, 16, 16), (1, 0, 16), 0]),
            (program.add, [x, y, x]),
            (program.copy, [x, y]),
            (program.select, [(0, 0, 16), (2, 0, 16)]),
            (program.softcap, [(2, 0, 16), 30.0]),
        ]

    def batch(self) -> SimpleNamespace:
        f32 = lambda *values: np.array(values, np.float32)  # noqa: E731
        csr = {"start": i32(0, 1, 2), "ids": i32(3, 4)}
        return SimpleNamespace(
            positions=i32(1, 2),
            top_k=i32(0, 5),
            num_logprobs=i32(-1, 3),
            seeds=np.array([1, 2], np.uint64),
            temperature=f32(1, 0),
            top_p=f32(1, 0.9),
            min_p=f32(0, 0.1),
            penalties=np.ones((2, 3), np.float32),
            seen=SimpleNamespace(**csr, counts=i32(1, 1)),
            bias=SimpleNamespace(**csr, values=f32(1, -1)),
            allowed=SimpleNamespace(row=i32(0, -1), masks=np.full((1, 2), 0xFFFFFFFF, np.uint32)),
            maxima=self.rng.choice((None, np.zeros((2, 1), np.float32))),
        )

    def plain_batch(self) -> SimpleNamespace:
        """One that draws tokens and nothing else."""
        batch = self.batch()
        batch.num_logprobs, batch.maxima = i32(-1, -1), None
        batch.seen = batch.bias = batch.allowed = None
        return batch

    def inputs(self) -> list[Any]:
        """Of a step: a row of three tokens, and one of one."""
        tables = np.array([[0, 1, 2, 3], [4, 5, 0, 0]], np.int32)
        positions = (0, 1, 2, 5)
        return [
            *(i32(1, 2, 3, 4), i32(*positions), i32(0, 0, 0, 1), i32(0, 3, 4), i32(3, 6), tables),
            *(i32(*positions), i32(2, 3)),
        ]

    def calls(self) -> list[Call]:
        rng, runtime, kv = self.rng, self.runtime, self.kv
        kind = rng.choice(list(BLOCKS))
        block, size = BLOCKS[kind]
        k = 256 if block == 256 else 64
        program = rng.choice(self.programs)
        return [
            (_native.Runtime, [_native.isas()[0], 1, 0, False]),
            (runtime.pack, [kind, np.zeros((17, k // block * size), np.uint8), k, None]),
            (runtime.pack, [0, np.zeros((2, 128), np.uint8), 32, i32(1, 0)]),
            (runtime.load_file, [self.fd, 0, 4096, self.sums(), rng.choice(("map", "read", "auto"))]),
            (runtime.adopt, [self.region, 0, 0, 16, 32]),
            (runtime.vector, [np.ones(32, np.float32)]),
            (runtime.sample, [np.zeros((2, 40), np.float32), self.batch()]),
            (_native.Sampler, [self.plain_batch(), 2, 40]),
            (
                _native.Sampler(self.plain_batch(), 2, 40).__call__,
                [runtime, np.zeros((2, 40), np.float32), rng.choice((None, np.zeros((2, 1), np.float32)))],
            ),
            (runtime.logprobs, [np.zeros((2, 40), np.float32), i32(0, 39), 3]),
            (_native.RopeTable, [np.ones((8, 4), np.float32), np.ones((8, 4), np.float32)]),
            (_native.kv_memory, ["f16", (1, 16, 1, 8, 4)]),
            (_native.checksum, [np.zeros(100, np.uint8)]),
            (_native.quant_bytes, [4, 64]),
            (_native.texts, [np.array([1, 0, 0, 0, 0, 0, 0, 0, 65], np.uint8), 0, 1]),
            (_native.BytePairs, self.texts),
            (self.pairs.encode, ["abc ab", [(0, 3), (3, 4), (4, 6)], [0, 1, 0], [7], 3]),
            (self.pairs.find, ["ab"]),
            (kv.copy, [0, 1]),
            (kv.fill, [0, 0.5]),
            (kv.read, [0, 0]),
            (kv.shift_keys, [0, np.zeros((1, 1, 8), np.float32)]),
            (_native.Program, [runtime, kv, (8, 2, 8, 4), 1 << 14, 1 << 12]),
            (program.add_buffer, [0, 32, False, None]),
            (program.add_quant_buffer, [10240, 32, False, None]),
            (program.add_group, [[self.matrix, self.matrix]]),
            (program.finish, [(2, 0, 16)]),
            (self.finished.num_barriers, [0]),
            (self.finished.run, self.inputs()),
            (program.run, self.inputs()),
            *self.operations(program),
        ]

    def draw(self) -> Call:
        function, arguments = self.rng.choice(self.calls())
        arguments = list(arguments)
        if self.rng.random() < 0.05:
            return function, [any_value(self.rng) for _ in range(self.rng.randrange(7))]
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            at = self.rng.randrange(len(arguments))
            arguments[at] = self.spoil(arguments[at])
        return function, arguments

    def spoil(self, value: Any) -> Any:
        if not isinstance(value, SimpleNamespace):
            return spoiled(self.rng, value)
        name = self.rng.choice(list(vars(value)))
        inner = getattr(value, name)
        setattr(value, name, None if self.rng.random() < 0.1 else self.spoil(inner))
        return value


def truth() -> bytes:
    """Bits that must not change, whatever was called before."""
    runtime = _native.Runtime(_native.isas()[0], 1, 0, False)
    data = np.arange(16 * 34, dtype=np.int64).astype(np.uint8).reshape(16, 34)
    logits = np.sin(np.arange(40, dtype=np.float32)).reshape(1, 40)
    found = runtime.logprobs(logits, i32(3), 5)
    pairs = _native.BytePairs(
        np.frombuffer(b"abab", np.uint8), np.array([1, 2, 4], np.uint64), *MERGES, False
    )
    ids = pairs.encode("abba", [(0, 4)], [0], [], None)
    return b"".join(
        [runtime.pack(8, data, 32, None).data().tobytes(), *(a.tobytes() for a in found), bytes(ids)]
    )


MERGES = (np.frombuffer(b"a b", np.uint8), np.array([3], np.uint64))


def child(seed: int, first: int, count: int) -> None:
    """Make `count` calls; a line each, begun before the call, so that a crash names it."""
    wanted = truth()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if "sanitize" not in _native.__file__:
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_EXTRA_BYTES,) * 2)
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(4096))
        file.flush()
        for i in range(first, first + count):
            world = World(Random(f"{seed}-{i}"), Path(file.name))
            function, arguments = world.draw()
            name = getattr(function, "__qualname__", str(function)).replace(" ", "")
            print(i, name, end=" ", flush=True)
            began_s = time.process_time()
            try:
                function(*arguments)
                said = "returned"
            except REFUSALS as error:
                said = "refused" if len(str(error)) < 2000 else f"FAULT long message {str(error)[:200]}"
            except BaseException:  # noqa: BLE001 - that is what is looked for
                said = "FAULT " + " | ".join(traceback.format_exc().splitlines()[-5:])
            took_s = time.process_time() - began_s
            if took_s > MAX_CPU_S:
                said = f"FAULT {took_s:.1f} s of computing"
            world.close()
            print(said, flush=True)
        print("same" if truth() == wanted else "FAULT other bits than before")


def run(count: int, seed: int, seconds: float = float("inf")) -> tuple[Counter[tuple[str, str]], list[str]]:
    """How often each function returned and refused, and what is wrong."""
    outcomes: Counter[tuple[str, str]] = Counter()
    faults: list[str] = []
    end_s = time.monotonic() + seconds
    at = 0
    while at < count and time.monotonic() < end_s:
        size = min(BATCH, count - at)
        command = [sys.executable, "-m", "tests.fuzz.natives", "--child", "--seed", str(seed)]
        command += ["--first", str(at), "--count", str(size)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, env=child_environment()
        )
        lines = done.stdout.splitlines()
        for line in lines:
            if "FAULT" in line:
                faults.append(line)
            elif line != "same":
                number, name, *said = line.split(" ", 2)
                outcomes[name, said[0] if said else "died"] += 1
                at = int(number) + 1
        if done.returncode or not lines or lines[-1] != "same":
            faults.append(f"{lines[-1:]}: exit {done.returncode}: {done.stderr[-1500:]}")
            at += 0 if lines else size
    return outcomes, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        child(given.seed, given.first, given.count)
        return
    outcomes, faults = run(given.count, given.seed, given.seconds)
    for (name, said), number in sorted(outcomes.items()):
        print(f"{number:7} {name} {said}")
    print(f"{outcomes.total()} calls, {len(faults)} faults")
    for fault in faults[:20]:
        print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
