"""Clients of the planted causes: well-behaved ones that stream, some that read late, some that send late."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.tools.bench.ask import Failure, ask
from headrace.tools.bench.wire import Client, Target

TIMEOUT_S = 120.0
COMPLETIONS = "/v1/completions"
READ_BYTES = 2048
SEND_BYTES = 128

Body = Callable[[random.Random], dict[str, Any]]


@dataclass
class Site:
    """A server under load, and what became of the requests."""

    port: int
    rng: random.Random
    answered: int = 0
    failed: list[str] = field(default_factory=list)

    async def send(self, body: dict[str, Any]) -> None:
        """One request, read to its end as fast as it comes."""
        whole = {"model": "default", "temperature": 0, "ignore_eos": True, "stream": True, **body}
        now = asyncio.get_running_loop().time()
        found = await ask(Client(Target("127.0.0.1", self.port)), COMPLETIONS, whole, TIMEOUT_S, now)
        is_fine = found.failure is None or found.failure is Failure.EMPTY  # ids without a tokenizer: no text
        self.note(None if is_fine else f"{found.failure}: {found.detail}")

    def note(self, failure: str | None) -> None:
        if failure is None:
            self.answered += 1
        else:
            self.failed.append(failure)


async def closed(site: Site, users: int, body: Body) -> None:
    """So many users, each of whom asks again when the answer is there; until cancelled."""

    async def one() -> None:
        while True:
            await site.send(body(site.rng))
            if site.failed:
                await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(one())


async def arriving(site: Site, per_second: float, body: Body) -> None:
    """Requests that come at random moments, so many a second (Poisson); until cancelled."""
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(site.send(body(site.rng)))
            await asyncio.sleep(site.rng.expovariate(per_second))


async def reading_late(site: Site, users: int, bytes_s: float, body: Body) -> None:
    """Users whose line takes so many bytes a second, with small buffers on the way; until cancelled."""

    async def one() -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # what is left unread at the end must not keep the server sending
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                await loop.sock_connect(sock, ("127.0.0.1", site.port))
                await loop.sock_sendall(sock, _request(body(site.rng)))
                while await loop.sock_recv(sock, READ_BYTES):  # noqa: ASYNC110 - slow on purpose
                    await asyncio.sleep(READ_BYTES / bytes_s)
                site.note(None)
            except OSError as error:
                site.note(f"connection: {error}")
            finally:
                sock.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(one())


async def sending_late(site: Site, users: int, bytes_s: float, body: Body) -> None:
    """Users whose request takes its time to the server; until cancelled."""

    async def one() -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            try:
                data = _request(body(site.rng))
                for at in range(0, len(data), SEND_BYTES):
                    writer.write(data[at : at + SEND_BYTES])
                    await writer.drain()
                    await asyncio.sleep(SEND_BYTES / bytes_s)
                while await reader.read(1 << 16):
                    pass
                site.note(None)
            except OSError as error:
                site.note(f"connection: {error}")
            finally:
                writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(one())


async def for_a_while(site: Site, load: Callable[[Site], Any], meanwhile: Callable[[], Any]) -> Any:
    """What `meanwhile` gives while the load is on."""
    task = asyncio.ensure_future(load(site))
    try:
        return await meanwhile()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _request(body: dict[str, Any]) -> bytes:
    whole = {"model": "default", "temperature": 0, "ignore_eos": True, "stream": True, **body}
    data = json.dumps(whole).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
