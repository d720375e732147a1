"""OpenVINO GenAI: its continuous batching behind a small server, for the same client and HTTP as others."""

import subprocess
from pathlib import Path

from benchmarks.peers.servers import Server, free_port, start

SERVER = Path(__file__).with_name("openvino_server.py")


def server(python: Path, model: Path, threads: int) -> Server:
    """Start it; the model is read from the GGUF file and converted, which takes seconds.

    Raises:
        RuntimeError: OpenVINO cannot read the file (Q5_0 tensors, for one), or did not start.
    """
    port = free_port()
    # -P: files beside the server must not hide OpenVINO's modules
    command = [str(python), "-P", str(SERVER), str(model), "--port", str(port), "--threads", str(threads)]
    return start("openvino", command, port, timeout_s=300)


def version(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('openvino-genai'))"
    return subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
