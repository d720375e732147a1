"""Start and stop servers under comparison."""

import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.limits import tree


@dataclass
class Server:
    """A server that is up."""

    label: str
    port: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @property
    def pids(self) -> list[int]:
        return tree(self.process.pid)

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
    label: str,
    command: list[str],
    port: int,
    *,
    ready: str = "/health",
    timeout_s: float = 180,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a command and wait until `ready` answers 200.

    Raises:
        RuntimeError: it ended, or was not ready in time; the message names its log.
    """
    log_path = Path(tempfile.gettempdir()) / f"bench-{label}-{port}.log"
    log = log_path.open("wb")
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},  # noqa: TID251 - a child process
    )
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{label} ended (see {log_path}): {log_path.read_text(errors='replace')[-800:]}"
            )
        if _answers(port, ready):
            return Server(label, port, process, log)
        time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"{label} was not ready within {timeout_s:.0f} s; see {log_path}")


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def headrace(model: Path | str, program: str = "headrace", flags: Sequence[str] = ()) -> Server:
    """Headrace with its defaults and these flags."""
    port = free_port()
    command = [program, "serve", str(model), "--port", str(port), "--served-model-name", "default"]
    command += flags
    return start("headrace", command, port, ready="/ready")
