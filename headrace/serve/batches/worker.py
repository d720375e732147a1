"""Answers the lines of batches, a few at a time, through the application's own routes.

A line is answered as if it had come over HTTP: same checks, same answer. Its requests belong to a tenant of
the batch's owner that is last in every line. What is overloaded is tried again; what is answered is written
down before it counts. A batch that the end of the server interrupts goes on at the next start.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, MutableMapping
from typing import Any, cast

import msgspec
from starlette.types import ASGIApp

from headrace.base.clock import unix_s
from headrace.base.config import BatchConfig
from headrace.base.terms import Tenant, Terms, set_caller
from headrace.serve.batches.lines import Line, read_line
from headrace.serve.batches.store import Store
from headrace.serve.faults import error_body, unexpected

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
AGAIN = frozenset({408, 429, 503})
AGAIN_S = 1.0
MOST_OUTAGES = 10
"""Answers that say the engine is gone, after which a line fails: it may be what ends the engine."""
LAST = 1_000_000
"""The priority of batches, the lowest there is."""


class Worker:
    """Runs batches, one after the other.

    Args:
        app: the application without its gate.
        store: where batches lie.
        config: how many lines at a time.
    """

    def __init__(self, app: ASGIApp, store: Store, config: BatchConfig) -> None:
        self._app = app
        self.store = store
        self.config = config
        self._news = asyncio.Event()
        self._saving = asyncio.Lock()
        self._cancelled: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There may be something to do; starts the worker."""
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def cancel(self, name: str) -> None:
        """The batch is to end: lines that are being answered still count, others do not start."""
        self._cancelled.add(name)
        self.wake()

    async def close(self) -> None:
        """Stop; lines that are being answered are aborted and come again at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._news.clear()
            for batch in await asyncio.to_thread(self.store.all_batches):
                if batch["status"] in OPEN:
                    await self._try_batch(batch)
            await self._news.wait()

    async def _try_batch(self, batch: dict[str, Any]) -> None:
        """Run a batch; one that cannot go on (its file is gone, the disk is full) fails, and others run."""
        try:
            await self._run_batch(batch)
        except Exception as error:  # noqa: BLE001 - the border between batches: the client is told
            problem = {"code": "failed", "message": f"the batch cannot go on: {error}"[:300], "line": None}
            batch |= {"status": "failed", "failed_at": int(unix_s())}
            batch["errors"] = {"object": "list", "data": [problem | {"param": None}]}
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.store.put, "batch", batch)

    async def _run_batch(self, batch: dict[str, Any]) -> None:
        name, owner = batch["id"], batch["owner"]
        most = self.config.max_lines_running
        set_caller(Terms(tenant=Tenant(name=f"batches of {owner!r}", priority=LAST, max_running=most)))
        done = await asyncio.to_thread(self._done, name)
        lines = await asyncio.to_thread(self._lines, batch["input_file_id"])
        if batch["status"] != "cancelling":
            batch |= {"status": "in_progress", "in_progress_at": batch["in_progress_at"] or int(unix_s())}
            await self._save(batch, done)
        todo = iter([line for line in lines if line.custom_id not in done])
        if batch["status"] == "cancelling":
            self._cancelled.add(name)
        tasks = [asyncio.create_task(self._work(batch, todo, done)) for _ in range(most)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._finish(batch, done)

    async def _work(self, batch: dict[str, Any], todo: Iterable[Line], done: dict[str, bool]) -> None:
        name = batch["id"]
        for line in todo:
            if name in self._cancelled:
                return
            answer = await self._answer(line, name)
            if answer is None:
                return
            status, body = answer
            result = {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": line.custom_id,
                "response": {"status_code": status, "request_id": uuid.uuid4().hex, "body": body},
                "error": None,
            }
            is_good = status < 400
            suffix = ".out" if is_good else ".err"
            await asyncio.to_thread(self.store.append, name, suffix, msgspec.json.encode(result))
            done[line.custom_id] = is_good
            await self._save(batch, done)

    async def _answer(self, line: Line, name: str) -> tuple[int, Any] | None:
        """Status and body; None when the batch was cancelled before the line had an answer."""
        outages = 0
        while True:
            try:
                status, raw = await call(self._app, line.url, msgspec.json.encode(line.body))
                body = msgspec.json.decode(raw)
            except Exception as error:  # noqa: BLE001 - the border between lines: this one fails, others go on
                return 500, error_body(unexpected(error))
            outages += status == 503
            if (status not in AGAIN or outages > MOST_OUTAGES) and not was_cut(body):
                return status, body
            if name in self._cancelled:
                return None
            await asyncio.sleep(AGAIN_S)

    async def _finish(self, batch: dict[str, Any], done: dict[str, bool]) -> None:
        name, now = batch["id"], int(unix_s())
        for suffix, field in ((".out", "output_file_id"), (".err", "error_file_id")):
            lines = await asyncio.to_thread(self.store.done_lines, name, suffix)
            if lines and not batch[field]:
                data = b"".join(line + b"\n" for line in lines)
                label, owner = f"{name}{suffix}.jsonl", batch["owner"]
                made = await asyncio.to_thread(self.store.add_file, data, label, "batch_output", owner)
                batch[field] = made["id"]
        end = "cancelled" if name in self._cancelled else "completed"
        batch |= {"status": end, f"{end}_at": now, "finalizing_at": batch["finalizing_at"] or now}
        await self._save(batch, done)
        await asyncio.to_thread(self.store.drop_lines, name)
        self._cancelled.discard(name)

    async def _save(self, batch: dict[str, Any], done: dict[str, bool]) -> None:
        good = sum(done.values())
        counts = batch["request_counts"]
        batch["request_counts"] = {**counts, "completed": good, "failed": len(done) - good}
        if batch["id"] in self._cancelled and batch["status"] == "in_progress":
            batch |= {"status": "cancelling", "cancelling_at": int(unix_s())}
        async with self._saving:  # lines end together: the last word must be the latest
            await asyncio.to_thread(self.store.put, "batch", dict(batch))

    def _done(self, name: str) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for suffix in (".out", ".err"):
            for line in self.store.done_lines(name, suffix):
                found[msgspec.json.decode(line)["custom_id"]] = suffix == ".out"
        return found

    def _lines(self, name: str) -> list[Line]:
        return [read_line(line) for line in self.store.content(name).split(b"\n") if line.strip()]


def was_cut(body: Any) -> bool:
    """Whether an answer was aborted by somebody else than the line: by the end of the server."""
    choices: Any = cast("dict[str, Any]", body).get("choices") if isinstance(body, dict) else None
    return any(
        choice.get("finish_reason") == "abort" for choice in cast("list[dict[str, Any]]", choices or [])
    )


async def call(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes]:
    """POST a JSON body to a route of the application, without a connection.

    Returns:
        Status and body of the answer.
    """
    status, chunks, is_sent = 500, list[bytes](), False
    forever = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        nonlocal is_sent
        if is_sent:
            await forever.wait()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "server": None,
        "client": None,
    }
    await app(scope, receive, send)
    return status, b"".join(chunks)
