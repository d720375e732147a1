"""A live server on the embedded model, in its own process."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.base.env import child_environment


class Live(NamedTuple):
    url: str
    process: "subprocess.Popen[str]"
    banner: str


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[Live]:
    command = [sys.executable, "-m", "headrace.cli.main", "serve", str(model), "--port", "0", *flags]
    command += ["--threads", "1"]  # what is tested here needs no speed, and others may use the cores
    environment = child_environment() | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r" at (http://\S+)", line):
                yield Live(found[1], process, "".join(lines))
                return
        pytest.fail("the server did not start:\n" + "".join(lines))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait(5)


@pytest.fixture(scope="session")
def live_server(smollm2_path: Path) -> Iterator[Live]:
    with serving(
        smollm2_path, "--max-num-seqs", "8", "--max-model-len", "512", "--served-model-name", "smollm2"
    ) as live:
        yield live
