"""Typed messages over a socket: frames of a length, a kind and msgpack of exactly that kind's fields.

```
4 bytes length (little endian) | 1 byte kind | length bytes of msgpack
```

Both ends are Headrace; still, lengths and kinds are checked, and nothing but data can arrive.
"""

import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import msgspec

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig
from headrace.base.errors import EngineDeadError, RequestError
from headrace.base.messages import (
    AddGroup,
    AskPicture,
    AskStats,
    AskTimelines,
    Beat,
    Failed,
    Finish,
    Hold,
    News,
    Picture,
    Ready,
    Refused,
    Shutdown,
    Stats,
    Timelines,
)
from headrace.engine.process.outbox import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first message to the engine process: load this model, with these (concrete) settings."""

    config: EngineConfig


KINDS: tuple[type[Any], ...] = (
    Start,
    AddGroup,
    Finish,
    AskStats,
    Shutdown,
    Hold,
    Refused,
    News,
    Stats,
    Ready,
    Failed,
    Beat,
    AskPicture,
    Picture,
    AskTimelines,
    Timelines,
)
"""The kind byte is the index here."""
HEADER = struct.Struct("<IB")
MAX_FRAME_BYTES = 256 << 20
KEEP_S = 20.0
"""Seconds that the process may go on writing packed weights after the engine has ended."""
MAX_WAIT_S = 1e6
"""Longer waits do not fit the system call."""

_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: int) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(KINDS[kind])


def encode(message: object) -> bytes:
    """The frame of a message.

    Raises:
        EngineDeadError: the message is of no known kind, or too long.
        RequestError: a value in it has no place in a message, such as a number of more than 64 bits.
    """
    try:
        kind = KINDS.index(type(message))
    except ValueError:
        raise EngineDeadError(f"{type(message).__name__} is no message") from None
    try:
        payload = _encoder.encode(message)
    except (OverflowError, ValueError, TypeError) as error:
        raise RequestError(f"a {type(message).__name__} cannot be sent to the engine: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise EngineDeadError(f"a message of {len(payload)} bytes exceeds {MAX_FRAME_BYTES}")
    return HEADER.pack(len(payload), kind) + payload


def decode(kind: int, payload: bytes) -> Any:
    """The message of a frame.

    Raises:
        EngineDeadError: unknown kind, or the payload is not of that kind.
    """
    if not 0 <= kind < len(KINDS):
        raise EngineDeadError(f"message kind {kind} is unknown")
    try:
        return _decoder(kind).decode(payload)
    except msgspec.MsgspecError as error:
        raise EngineDeadError(f"a broken {KINDS[kind].__name__} message: {error}") from error


class Channel:
    """One end of a socket. Any thread may send; one thread receives. An end either sends or posts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = Lock()
        self._outbox = Outbox(sock)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of posted messages that the other end has not taken yet."""
        return self._outbox.num_bytes

    def send(self, message: object) -> None:
        """Send a message whole; waits while the other end does not read.

        Raises:
            EngineDeadError: the other end is gone.
        """
        frame = encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except OSError as error:
            raise EngineDeadError("the engine process is gone") from error

    def post(self, message: object) -> None:
        """Send a message without waiting; what the other end does not take yet is kept for it.

        Raises:
            EngineDeadError: the other end is gone.
        """
        self._outbox.put(encode(message))

    def receive(self, within_s: float | None = None) -> Any:
        """The next message; None: the other end is gone.

        Args:
            within_s: seconds until it must be there; None: wait for ever.

        Raises:
            EngineDeadError: what came is no message.
            TimeoutError: none came in time; the channel is of no use any more.
        """
        until_s = None if within_s is None else now_s() + within_s
        header = self._read(HEADER.size, until_s)
        if header is None:
            return None
        length, kind = HEADER.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise EngineDeadError(f"a message of {length} bytes exceeds {MAX_FRAME_BYTES}")
        payload = self._read(length, until_s)
        return None if payload is None else decode(kind, payload)

    def close(self) -> None:
        """Close this end; a blocked `receive` returns None."""
        with suppress(OSError):  # the other end may have been faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int, until_s: float | None) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                if until_s is not None:
                    self._await_data(until_s)
                part = self._sock.recv(min(size - len(parts), 1 << 20))
            except TimeoutError:
                raise
            except (OSError, ValueError):  # ValueError: closed here, in another thread
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _await_data(self, until_s: float) -> None:
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        if not waiting.poll(1e3 * min(max(0.0, until_s - now_s()), MAX_WAIT_S)):
            raise TimeoutError
