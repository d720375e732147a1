"""Starts servers of this installation, each a process of its own on a free port of this machine."""

import re
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

from headrace.base.env import child_environment
from headrace.base.errors import EngineDeadError

END_S = 20.0
_URL = re.compile(r" at (http://\S+)")


@contextmanager
def serving(model: str, flags: Sequence[str]) -> Generator[str]:
    """The URL of a server that is up; it ends with the block.

    Raises:
        EngineDeadError: it did not start; says its last lines.
    """
    command = [sys.executable, "-m", "headrace.cli.main", "serve", model]
    command += ["--host", "127.0.0.1", "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    )
    try:
        yield _await_url(process)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()


def _await_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=5)
    for line in process.stdout:
        last.append(line.strip())
        if found := _URL.search(line):
            Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
            return found[1]
    raise EngineDeadError(f"the server did not start: {' | '.join(last)}")
