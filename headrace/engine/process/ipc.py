"""Typed messages over a socket: frames of a length, a kind and msgpack of exactly that kind's fields.

```
4 bytes length (little endian) | 1 byte kind | length bytes of msgpack
```

Both ends are Headrace; still, lengths and kinds are checked, and nothing but data can arrive.
"""

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import msgspec

from headrace.base.config import EngineConfig
from headrace.base.errors import EngineDeadError, RequestError
from headrace.base.messages import (
    AddGroup,
    AskStats,
    Beat,
    Failed,
    Finish,
    Hold,
    News,
    Ready,
    Refused,
    Shutdown,
    Stats,
)


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
)
"""The kind byte is the index here."""
HEADER = struct.Struct("<IB")
MAX_FRAME_BYTES = 256 << 20

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
    """One end of a socket. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = Lock()

    def send(self, message: object) -> None:
        """Send a message whole.

        Raises:
            EngineDeadError: the other end is gone.
        """
        frame = encode(message)
        try:
            with self._lock:
                self._sock.sendall(frame)
        except OSError as error:
            raise EngineDeadError("the engine process is gone") from error

    def receive(self) -> Any:
        """The next message; None: the other end is gone.

        Raises:
            EngineDeadError: what came is no message.
        """
        header = self._read(HEADER.size)
        if header is None:
            return None
        length, kind = HEADER.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise EngineDeadError(f"a message of {length} bytes exceeds {MAX_FRAME_BYTES}")
        payload = self._read(length)
        return None if payload is None else decode(kind, payload)

    def close(self) -> None:
        """Close this end; a blocked `receive` returns None."""
        with suppress(OSError):  # the other end may have been faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._sock.recv(min(size - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
