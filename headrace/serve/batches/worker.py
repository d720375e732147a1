"""Answers the lines of batches, a few at a time, through the application's own routes.

A line is answered as if it had come over HTTP: same checks, same answer. Its requests belong to the batch's
owner and run in the background: they share the owner's limits and wait for them. What is overloaded is tried
again; what is answered is written down before it counts. A batch that the end of the server interrupts goes
on at the next start.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, cast

import msgspec
from starlette.types import ASGIApp

from headrace.base.clock import unix_s
from headrace.base.config import BatchConfig
from headrace.base.terms import Tenant, Terms, caller_terms, set_caller
from headrace.serve.batches.lines import Line, read_line
from headrace.serve.batches.store import OPEN, Store
from headrace.serve.faults import error_body, unexpected

AGAIN = frozenset({408, 429, 503})
AGAIN_S = 1.0
MOST_OUTAGES = 10
"""Answers that say the engine is gone, after which a line fails: it may be what ends the engine."""
SWEEP_S = 3600.0
"""Between two looks for what is expired."""


class Worker:
    """Runs the batches of each owner one after the other, those of several owners side by side.

    Args:
        app: the application without its gate.
        store: where batches lie.
        config: how many lines at a time.
        tenant_of: an owner's share and limits, as they are now.
    """

    def __init__(
        self, app: ASGIApp, store: Store, config: BatchConfig, tenant_of: Callable[[str], Tenant]
    ) -> None:
        self._app = app
        self._tenant_of = tenant_of
        self.store = store
        self.config = config
        self._news = asyncio.Event()
        self._saving = asyncio.Lock()
        self._cancelled: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._owners: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """There may be something to do; starts the worker."""
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def cancel(self, name: str, owner: str) -> dict[str, Any]:
        """The batch is to end: lines that are being answered still count, others do not start.

        Returns:
            The batch as it is on the disk then; one that has ended stays as it is.

        Raises:
            NotFoundError: there is no such batch of this owner.
        """
        async with self._saving:
            found = await asyncio.to_thread(self.store.get, "batch", name, owner)
            if found["status"] in OPEN:
                self._cancelled.add(name)
                if found["status"] != "cancelling":
                    found |= {"status": "cancelling", "cancelling_at": int(unix_s())}
                    await asyncio.to_thread(self.store.put, "batch", found)
        self.wake()
        return found

    async def close(self) -> None:
        """Stop; lines that are being answered are aborted and come again at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                self._news.clear()
                await asyncio.to_thread(self.store.sweep)
                for batch in await asyncio.to_thread(self.store.all_batches):
                    if batch["status"] in OPEN and batch["owner"] not in self._owners:
                        self._start(batch["owner"])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):  # `wait_for` may swallow what `close` says
                        await self._news.wait()
        finally:
            left = list(self._owners.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _start(self, owner: str) -> None:
        def is_over(_: asyncio.Task[None]) -> None:
            del self._owners[owner]
            self._news.set()  # a batch may have come since it last looked

        task = self._owners[owner] = asyncio.create_task(self._run_owner(owner))
        task.add_done_callback(is_over)

    async def _run_owner(self, owner: str) -> None:
        """Run the batches of an owner that are there now, oldest first."""
        for batch in await asyncio.to_thread(self.store.all_batches):
            if batch["owner"] == owner and batch["status"] in OPEN:
                await self._try_batch(batch)

    async def _try_batch(self, batch: dict[str, Any]) -> None:
        """Run a batch; one that cannot go on (its file is gone, the disk is full) fails, and others run."""
        try:
            await self._run_batch(batch)
        except Exception as error:  # noqa: BLE001 - the border between batches: the client is told
            problem = {"code": "failed", "message": f"the batch cannot go on: {error}"[:300], "line": None}
            batch |= {"status": "failed", "failed_at": int(unix_s())}
            batch["errors"] = {"object": "list", "data": [problem | {"param": None}]}
            batch["expires_at"] = self.store.end_of_results()
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.store.put, "batch", batch)

    async def _run_batch(self, batch: dict[str, Any]) -> None:
        name, owner = batch["id"], batch["owner"]
        most = self.config.max_lines_running
        set_caller(Terms(tenant=self._tenant_of(owner), is_background=True))
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
        name = batch["id"]
        for suffix, field in ((".out", "output_file_id"), (".err", "error_file_id")):
            lines = await asyncio.to_thread(self.store.done_lines, name, suffix)
            if lines and not batch[field]:
                data = b"".join(line + b"\n" for line in lines)
                label, owner = f"{name}{suffix}.jsonl", batch["owner"]
                made = await asyncio.to_thread(self.store.add_file, data, label, "batch_output", owner)
                batch[field] = made["id"]
        await self._save(batch, done, is_over=True)
        await asyncio.to_thread(self.store.drop_lines, name)
        self._cancelled.discard(name)

    async def _save(self, batch: dict[str, Any], done: dict[str, bool], *, is_over: bool = False) -> None:
        async with self._saving:  # lines end together, cancels come between: the last word must be the latest
            good, now = sum(done.values()), int(unix_s())
            counts = batch["request_counts"]
            batch["request_counts"] = {**counts, "completed": good, "failed": len(done) - good}
            is_cancelled = batch["id"] in self._cancelled
            if is_cancelled and batch["status"] == "in_progress":
                batch |= {"status": "cancelling", "cancelling_at": now}
            if is_over:
                end = "cancelled" if is_cancelled else "completed"
                batch |= {"status": end, f"{end}_at": now, "finalizing_at": batch["finalizing_at"] or now}
                batch["expires_at"] = self.store.end_of_results()
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
    """POST a JSON body to a route of the application, without a connection, for whom the task works for.

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
        "state": {"tenant": caller_terms().tenant.name},
    }
    await app(scope, receive, send)
    return status, b"".join(chunks)
