"""Sending that never waits for the other end, for threads that must not stand still.

What the socket does not take at once waits here, and a thread of its own hands it over: a process that is
stopped (SIGSTOP, a paused container) reads nothing, and an event loop must not wait for it.
"""

import socket
from collections import deque
from threading import Lock, Thread

from headrace.base.errors import EngineDeadError


class Outbox:
    """Frames on their way to the other end, in the order they were put. Thread-safe.

    Args:
        sock: where they go; whoever closes it ends the thread too.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = Lock()
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._error: OSError | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that wait for the other end to read."""
        return self._num_bytes

    def put(self, frame: bytes) -> None:
        """Send a frame, now or as soon as the other end reads.

        Raises:
            EngineDeadError: the other end is gone.
        """
        with self._lock:
            if self._error is not None:
                raise EngineDeadError("the engine process is gone") from self._error
            if not self._waiting:
                frame = frame[self._send_now(frame) :]
                if frame:
                    Thread(target=self._hand_over, name="headrace-outbox", daemon=True).start()
            if frame:
                self._waiting.append(frame)
                self._num_bytes += len(frame)

    def _send_now(self, frame: bytes) -> int:
        """How many bytes the socket takes without waiting."""
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise EngineDeadError("the engine process is gone") from error

    def _hand_over(self) -> None:
        """Send what waits until nothing does; runs in a thread of its own."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                frame = self._waiting[0]
            error = self._send_whole(frame)
            with self._lock:
                self._waiting.popleft()  # only now: who puts meanwhile must see that it is not its turn
                self._num_bytes -= len(frame)
                if error is not None:
                    self._error, self._num_bytes = error, 0
                    self._waiting.clear()
                if not self._waiting:
                    return

    def _send_whole(self, frame: bytes) -> OSError | None:
        try:
            self._sock.sendall(frame)
        except OSError as error:
            return error
        return None
