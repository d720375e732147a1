"""Start and stop the servers under comparison, each with its best flags on this machine."""

import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass
class Server:
    """A server that is up."""

    label: str
    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(
    label: str, command: list[str], port: int, ready: str = "/health", timeout_s: float = 180
) -> Server:
    """Start a command and wait until `ready` answers 200."""
    log_path = Path(tempfile.gettempdir()) / f"bench-{label}-{port}.log"
    log = log_path.open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{label} ended: {log_path.read_text(errors='replace')[-800:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=2) as answer:
                if answer.status == 200:
                    return Server(label, port, process, log)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"{label} was not ready within {timeout_s:.0f} s; see {log_path}")


def headrace(model: Path, program: str = "headrace") -> Server:
    port = free_port()
    return start(
        "headrace",
        [program, "serve", str(model), "--port", str(port), "--served-model-name", "default"],
        port,
        "/ready",
    )


def llama_cpp(model: Path, program: str = "llama-server", threads: int = 2) -> Server:
    port = free_port()
    flags = [
        "-t",
        str(threads),
        "-fa",
        "on",
        "-np",
        "16",
        "-no-kvu",
        "-cb",
        "-c",
        "65536",
        "-b",
        "512",
        "-ub",
        "128",
    ]
    return start(
        "llama.cpp", [program, "-m", str(model), "--port", str(port), "--host", "127.0.0.1", *flags], port
    )
