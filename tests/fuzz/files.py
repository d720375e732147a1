"""Mutated model files: `python -m tests.fuzz.files --count 20000`.

Tiny good checkpoints of both containers are damaged, opened, their text side loaded and their weights packed.
Each must load or be refused with a `CheckpointError`, within a second of computing and within bounded memory.
The work is done in child processes, so that a crash or a hang is seen, and costs one of them.
"""

import argparse
import gc
import json
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from headrace.base.env import child_environment
from tests.fuzz.mutate import NUMBERS, damage, mutate_json, odd_value

MAX_CPU_S = 1.0
MAX_EXTRA_BYTES = 1 << 30
"""Address space a child may take beyond what it has after loading good files."""
BATCH = 250
BATCH_S = 120

READY = "ready"
MAX_MODEL_LEN = 64


def seeds(folder: Path) -> list[Path]:
    """Good checkpoints: GGUF files of several number formats and families, and directories."""
    import gguf

    from tests.kit.checkpoints import make
    from tests.kit.gguf_files import write_model
    from tests.kit.vocabs import byte_library, byte_metadata, score_metadata

    kinds = gguf.GGMLQuantizationType
    by_bytes, by_score = byte_metadata(), score_metadata({"▁a": -1.0, "▁ab": -2.0})

    def gguf_file(family: str, name: str, vocabulary: dict[str, Any], kind: Any = None) -> Path:
        count = len(vocabulary["tokenizer.ggml.tokens"])
        return write_model(make(family, vocab_size=count), folder / f"{name}.gguf", kind, vocabulary)

    made = [
        gguf_file("llama", "llama", by_score),
        gguf_file("llama", "q8", by_bytes, kinds.Q8_0),
        gguf_file("qwen2", "q4", by_bytes, kinds.Q4_0),
        gguf_file("gemma3", "gemma3", by_score),
        gguf_file("phi3", "phi3", by_bytes),
        gguf_file("mistral", "mistral", by_score, kinds.Q5_1),
    ]
    tokenizer = byte_library()
    folders = [make("llama", vocab_size=tokenizer.get_vocab_size()).path]
    folders += [make(family).path for family in ("qwen2", "gemma3", "phi3")]
    tokenizer.save(str(folders[0] / "tokenizer.json"))
    return made + folders


def load(path: Path) -> None:
    """Everything that a start does with a model's files.

    Raises:
        HeadraceError: the checkpoint is refused.
    """
    from headrace.compute.models.load import load_model
    from headrace.compute.weights.checkpoint import open_checkpoint
    from headrace.engine.text import load_text

    checkpoint = open_checkpoint(path)
    json.dumps(checkpoint.description, default=str)
    load_text(checkpoint.tokenizer_source, checkpoint.generation, None)
    load_model(checkpoint, _backend(), min(MAX_MODEL_LEN, checkpoint.spec.max_length))


def _backend() -> Any:
    from headrace import _native
    from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions

    return NativeBackend(NativeOptions(isa=_native.isas()[0], threads=1))


def damaged(rng: Random, seed: Path, folder: Path) -> Path:
    """A damaged copy of a good checkpoint."""
    if seed.is_file():
        made = folder / "model.gguf"
        made.write_bytes(_damaged_gguf(rng, seed.read_bytes()))
        return made
    made = folder / "model"
    made.mkdir(exist_ok=True)
    for old in made.iterdir():
        old.unlink()
    for file in seed.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    kind = rng.randrange(6)
    if kind < 2:
        _damage_json(rng, made / "config.json")
    elif kind == 2:
        tokenizer = made / "tokenizer.json"
        is_there = tokenizer.exists() and rng.random() < 0.7
        _damage_json(rng, tokenizer if is_there else made / "generation_config.json")
    elif kind == 3:
        _write_index(rng, made)
    else:
        weights = made / "model.safetensors"
        weights.write_bytes(_damaged_safetensors(rng, weights.read_bytes()))
    return made


def _damage_json(rng: Random, file: Path) -> None:
    raw = file.read_bytes() if file.exists() else b"{}"
    if rng.random() < 0.2:
        file.write_bytes(damage(rng, raw, rng.choice((1, 2, 5))))
        return
    value = mutate_json(rng, json.loads(raw), rng.choice((1, 1, 2, 4)))
    if rng.random() < 0.3:
        value[rng.choice(_CONFIG_KEYS)] = rng.choice((odd_value(rng), _ROPES[rng.randrange(len(_ROPES))]))
    file.write_text(json.dumps(value))


_CONFIG_KEYS = (
    *(
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "head_dim",
        "sliding_window",
        "layer_types",
        "hidden_act",
    ),
    *("num_hidden_layers", "vocab_size", "hidden_size", "eos_token_id", "quantization_config", "torch_dtype"),
    *("auto_map", "attention_bias", "partial_rotary_factor", "max_position_embeddings", "architectures"),
)
_ROPES: tuple[Any, ...] = (
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 0,
        "beta_slow": 0,
    },
    {"rope_type": "yarn", "factor": 1e-30, "original_max_position_embeddings": 1 << 40, "rope_theta": 1},
    {"rope_type": "longrope", "long_factor": [0.0] * 8, "short_factor": [1.0] * 8, "factor": 2},
    {
        "rope_type": "llama3",
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 1,
        "original_max_position_embeddings": 8,
    },
    {"rope_type": "dynamic", "factor": 1e300},
    {"rope_type": ["linear"], "factor": 2},
    {"type": "linear", "factor": "2"},
)


def _write_index(rng: Random, folder: Path) -> None:
    """Make the weights a shard of an index, and damage the index."""
    names = _safetensors_header((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index: Any = {"metadata": {}, "weight_map": {n: "a.safetensors" for n in names if n != "__metadata__"}}
    index = mutate_json(rng, index, rng.choice((1, 2, 3)))
    text = json.dumps(index)
    if rng.random() < 0.5:
        text = text.replace(
            "a.safetensors",
            rng.choice(("../a.safetensors", "/etc/passwd", "b.safetensors", "", "a\\u0000")),
            1,
        )
    (folder / "model.safetensors.index.json").write_text(text)


def _safetensors_header(raw: bytes) -> dict[str, Any]:
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def _damaged_safetensors(rng: Random, raw: bytes) -> bytes:
    length = int.from_bytes(raw[:8], "little")
    head, data = raw[8 : 8 + length], raw[8 + length :]
    kind = rng.randrange(6)
    if kind == 0:
        return damage(rng, raw[:8], 1) + raw[8:]
    if kind == 1:
        return raw[: rng.randrange(len(raw))]
    if kind == 2:
        head = damage(rng, head, rng.choice((1, 3, 10)))
    elif kind == 3:
        head = head.replace(
            b"model.layers.0", b"model.layers.1", rng.randrange(1, 4)
        )  # names that occur twice
    else:
        value = mutate_json(rng, json.loads(head), rng.choice((1, 1, 2, 4)))
        head = json.dumps(value).encode()
    return len(head).to_bytes(8, "little") + head + data


def _damaged_gguf(rng: Random, raw: bytes) -> bytes:  # noqa: PLR0911 - one for each kind
    """Mostly the header is damaged: the data can be anything."""
    head = raw[: _data_start(raw)]
    kind = rng.randrange(8)
    if kind == 0:
        return raw[: rng.randrange(len(raw))]
    if kind == 1:
        return damage(rng, raw, rng.choice((1, 5, 50)))
    if kind < 4:
        return damage(rng, head, rng.choice((1, 1, 2, 4))) + raw[len(head) :]
    if kind == 4:  # one of the counts
        at, width = rng.choice(((4, 4), (8, 8), (16, 8)))
        return _numbered(rng, raw, at, width)
    if kind == 5:  # the name of a tensor or key becomes another's
        names = _names(head)
        old, new = rng.choice(names), rng.choice(names)
        return raw.replace(_text(old), _text(new), 1)
    return _misnumbered(rng, raw, head)


def _misnumbered(rng: Random, raw: bytes, head: bytes) -> bytes:
    """Other numbers after names: type and value of a key; shape, type and offset of a tensor."""
    names = _names(head)
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(names)
        at = raw.find(_text(name)) + 8 + len(name) + rng.choice((0, 4, 8, 12, 16, 20, 24, 28, 32))
        raw = _numbered(rng, raw, min(at, len(raw) - 8), rng.choice((1, 4, 4, 8)))
    return raw


def _numbered(rng: Random, raw: bytes, at: int, width: int) -> bytes:
    old = int.from_bytes(raw[at : at + width], "little")
    whole = [n for n in NUMBERS if isinstance(n, int)]
    new = rng.choice((old + 1, old - 1, old * 2, old ^ 1 << rng.randrange(8 * width), *rng.sample(whole, 4)))
    if width == 4 and rng.random() < 0.2:
        new = struct.unpack(
            "<I", struct.pack("<f", rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-40)))
        )[0]
    return raw[:at] + (new % (1 << 8 * width)).to_bytes(width, "little") + raw[at + width :]


def _text(name: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name


def _data_start(raw: bytes) -> int:
    from headrace.compute.weights.formats._gguf_header import parse_header

    return parse_header(memoryview(raw)).data_start


def _names(head: bytes) -> list[bytes]:
    from headrace.compute.weights.formats._gguf_header import parse_header

    found = parse_header(memoryview(head))
    return [n.encode() for n in [*found.metadata, *(t.name for t in found.tensors)]]


# ---- in a child ----


def child(paths: list[Path], seed: int, first: int, count: int) -> None:
    """Load `count` damaged files; writes a line for each to standard output."""
    from headrace.base.errors import HeadraceError

    for path in paths:
        load(path)
    print(READY, flush=True)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_EXTRA_BYTES,) * 2)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as folder:
        for i in range(first, first + count):
            if i % 8 == 0:
                gc.collect()  # what is loaded holds address space until its cycles are found
            rng = Random(f"{seed}-{i}")
            path = damaged(rng, rng.choice(paths), Path(folder))
            began_s = time.process_time()
            signal.alarm(10)
            try:
                load(path)
                said = "loaded"
            except HeadraceError as error:
                said = (
                    f"refused {len(error.message)}"
                    if len(error.message) < 2000
                    else f"FAULT {error.message[:300]}"
                )
            except BaseException:  # noqa: BLE001 - that is what is looked for
                said = "FAULT " + " | ".join(traceback.format_exc().splitlines()[-9:])
            signal.alarm(0)
            took_s = time.process_time() - began_s
            if took_s > MAX_CPU_S:
                said = f"FAULT {took_s:.1f} s of computing ({said})"
            print(i, said, f"{took_s:.3f}", flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError("no end after 10 s")


# ---- the parent ----


def lines(paths: list[Path], seed: int, first: int, count: int) -> Iterator[tuple[int, str]]:
    """What became of the files; a child that died is a fault of the file it was at."""
    import subprocess

    at, end = first, first + count
    while at < end:
        command = [sys.executable, "-m", "tests.fuzz.files", "--child", *map(str, paths)]
        command += ["--seed", str(seed), "--first", str(at), "--count", str(end - at)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=BATCH_S + 60,
            check=False,
            env=child_environment() | {"MALLOC_ARENA_MAX": "1"},
        )
        if not done.stdout.startswith(READY):
            raise RuntimeError(f"a good file does not load: {done.stderr[-3000:]}")
        for line in done.stdout.splitlines()[1:]:
            number, _, said = line.partition(" ")
            at = int(number) + 1
            yield int(number), said
        if done.returncode:
            yield at, f"FAULT the process ended with {done.returncode}: {done.stderr[-600:]}"
            at += 1


def run(count: int, seed: int, seconds: float = 1e9) -> tuple[Counter[str], list[str], tuple[float, str]]:
    """Damage and load files until `count` or `seconds` is reached.

    Returns: outcomes, what was wrong, and the seconds of computing and the name of the slowest.
    """
    outcomes: Counter[str] = Counter()
    slowest = (0.0, "")
    faults: list[str] = []
    end_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-") as folder:
        paths = seeds(Path(folder))
        for first in range(0, count, BATCH):
            if time.monotonic() > end_s:
                break
            for i, said in lines(paths, seed, first, min(BATCH, count - first)):
                outcomes[said.split()[0]] += 1
                took_s = said.rpartition(" ")[2]
                if took_s.replace(".", "").isdigit():  # a child that died has none
                    slowest = max(slowest, (float(took_s), f"{seed}-{i}"))
                if said.startswith("FAULT"):
                    faults.append(f"{seed}-{i}: {said}")
    return outcomes, faults, slowest


def main() -> int:
    """Run for a count or a time; 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", nargs="*", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.seed, given.first, given.count)
        return 0
    outcomes, faults, (slowest_s, name) = run(given.count, given.seed, given.seconds)
    print(f"{outcomes.total()} files: {dict(outcomes)}; slowest {slowest_s:.2f} s of computing ({name})")
    print(*faults[:20], sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
