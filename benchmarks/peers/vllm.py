"""vLLM for CPUs. It does not read GGUF: it gets the model dequantized to float32, once per model.

Its start takes minutes (it compiles), so it is asked for by name only.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.servers import Server, free_port, start

START_S = 900


def server(environment: Path, model: Path, threads: int, checkpoints: Path) -> Server:
    """Start it on a float32 copy of the model, made under `checkpoints` when it is not there yet."""
    folder = checkpoints / model.stem
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.peers.export_fp32", str(model), str(folder)]
        subprocess.run(command, check=True)
    port = free_port()
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
    }
    command = [
        str(environment / "bin/vllm"),
        *("serve", str(folder), "--served-model-name", "default", "--host", "127.0.0.1"),
        *("--port", str(port), "--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "16"),
        "--enable-prefix-caching",
    ]
    return start("vllm", command, port, timeout_s=START_S, environment=settings)


def version(environment: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    python = environment / "bin/python"
    return subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def mend(environment: Path) -> None:
    """What the package needs to run at all.

    vLLM looks itself up as `vllm` though the package is `vllm-cpu`: its metadata are copied under that name.
    """
    packages = next((environment / "lib").glob("python3*/site-packages"))
    own = next(packages.glob("vllm_cpu-*.dist-info"))
    copied = packages / own.name.replace("vllm_cpu-", "vllm-")
    if copied.exists():
        return
    copied.mkdir()
    lines = (own / "METADATA").read_text().splitlines()
    lines = ["Name: vllm" if x.startswith("Name:") else _local(x) for x in lines]
    (copied / "METADATA").write_text("\n".join(lines) + "\n")
    for name in ("entry_points.txt", "WHEEL"):
        if (own / name).is_file():
            (copied / name).write_text((own / name).read_text())


def _local(line: str) -> str:
    """The version with the suffix by which vLLM knows its CPU build."""
    return f"{line}+cpu" if line.startswith("Version:") and "+" not in line else line
