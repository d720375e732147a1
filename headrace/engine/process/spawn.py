"""Starting the engine process; imports little, so that the process can start before its parent is ready."""

import socket
import subprocess
import sys
from dataclasses import dataclass

from headrace.base.env import child_environment


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that imports its modules and then waits for its first message; it ends with the socket."""

    process: subprocess.Popen[bytes]
    sock: socket.socket


def spawn(model: str = "", load_format: str = "") -> Spawned:
    """Start an engine process.

    Args:
        model: reads the header of this model, if it is here, before it is asked to load one; empty: does not.
        load_format: of that model.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.engine.process", str(theirs.fileno()), model, load_format],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=child_environment(),
            process_group=0,  # an interrupt from the terminal is the parent's to handle
        )
    return Spawned(process, ours)
