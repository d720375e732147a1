"""HTTP/1.1 from the client's side: one connection per request, bodies of any transfer coding, event streams.

A general client costs several times more CPU per event, which a load tool beside the server takes from it.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from headrace.base.errors import RequestError

MAX_HEADERS = 200
MAX_LINE_BYTES = 1 << 22
MAX_ERROR_BYTES = 1 << 16
READ_BYTES = 1 << 16


class Writer(Protocol):
    """What is used of `asyncio.StreamWriter`."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """A server: where it is, and how to show who asks."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    """Path before `/v1`."""
    api_key: str | None = None

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}"

    @classmethod
    def from_url(cls, url: str, api_key: str | None = None) -> Self:
        """From `http://host:port`, with or without `/v1` at the end.

        Raises:
            RequestError: no URL of HTTP, or a key that cannot stand in a header.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise RequestError(f"{url!r} is no URL: {error}", param="url") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise RequestError(f"{url!r} is no http:// or https:// URL", param="url")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise RequestError("the API key holds characters that no header can carry", param="api_key")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, prefix, api_key)


class RefusedError(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


class CutError(Exception):
    """The connection ended before the answer did."""


Connect = Callable[[Target], Awaitable[tuple[asyncio.StreamReader, Writer]]]


async def connect(target: Target) -> tuple[asyncio.StreamReader, Writer]:
    """A connection to the server, over TLS where its URL says so."""
    context = ssl.create_default_context() if target.is_tls else None
    return await asyncio.open_connection(target.host, target.port, ssl=context, limit=MAX_LINE_BYTES)


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests to one server; `connect` is another in tests."""

    target: Target
    connect: Connect = connect

    async def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            RefusedError, CutError, OSError, ValueError: what the server answered, or how it did not.
        """
        pieces = [piece async for piece in self._exchange("GET", path, None)]
        return json.loads(b"".join(pieces))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers a body; errors as `get`."""
        pieces = [piece async for piece in self._exchange("POST", path, json.dumps(body).encode())]
        return json.loads(b"".join(pieces))

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """POST a body and give each `data:` line of the answer as it comes, the final `[DONE]` too.

        Raises:
            RefusedError, CutError, OSError: what the server answered, or how it did not.
        """
        rest = b""
        async for piece in self._exchange("POST", path, json.dumps(body).encode()):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise CutError(f"a line of the stream has more than {MAX_LINE_BYTES} bytes")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
        if rest.startswith(b"data:"):
            yield rest[5:].strip()

    async def _exchange(self, method: str, path: str, body: bytes | None) -> AsyncIterator[bytes]:
        reader, writer = await self.connect(self.target)
        try:
            writer.write(self._head(method, path, body) + (body or b""))
            status, headers = await _read_head(reader)
            pieces = _read_body(reader, headers)
            if status != 200:
                raise RefusedError(status, await _start_of(pieces))
            async for piece in pieces:
                yield piece
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionResetError) as error:
            raise CutError(f"the connection ended within the answer ({type(error).__name__})") from error
        finally:
            writer.close()

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        target = self.target
        host = f"[{target.host}]" if ":" in target.host else target.host
        lines = [
            f"{method} {target.prefix}{path} HTTP/1.1",
            f"Host: {host}:{target.port}",
            "Connection: close",
        ]
        if target.api_key is not None:
            lines.append(f"Authorization: Bearer {target.api_key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = await _line(reader)
    words = first.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise CutError(f"the server does not speak HTTP/1.1: {first[:80]!r}")
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = await _line(reader)
        if not line:
            return int(words[1]), headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise CutError(f"the answer has more than {MAX_HEADERS} headers")


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower().endswith("chunked"):
        while size := _chunk_size(await _line(reader)):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        return
    left = int(headers["content-length"]) if headers.get("content-length", "").isdigit() else None
    while left is None or left > 0:
        piece = await reader.read(READ_BYTES if left is None else min(left, READ_BYTES))
        if not piece:
            if left is not None:
                raise CutError(f"{left} bytes of the answer are missing")
            return
        left = None if left is None else left - len(piece)
        yield piece


async def _line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").strip()


def _chunk_size(line: str) -> int:
    try:
        return int(line.partition(";")[0], 16)
    except ValueError as error:
        raise CutError(f"{line[:40]!r} is no size of a chunk") from error


async def _start_of(pieces: AsyncIterator[bytes]) -> str:
    text = b""
    async for piece in pieces:
        text += piece
        if len(text) > MAX_ERROR_BYTES:
            break
    return text.decode(errors="replace")[:300].strip()
