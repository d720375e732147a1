"""Answers the lines of batches, a few at a time, through the application's own routes.

A line is answered as if it had come over HTTP: same checks, same answer (`call`). Its requests belong to the
batch's owner and run in the background: they share the owner's limits and wait for them. What is answered is
written down before it counts. A batch that the end of the server interrupts goes on at the next start.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
from starlette.types import ASGIApp

from headrace.base.clock import unix_s
from headrace.base.config import BatchConfig
from headrace.base.terms import Terms, set_caller
from headrace.serve.batches.call import Border, Caller
from headrace.serve.batches.lines import find_lines, line_at
from headrace.serve.batches.store import OPEN, RESULTS, Store

log = logging.getLogger("headrace.serve")

SWEEP_S = 3600.0
"""Between two looks for what is expired."""
MOST_OWNERS = 16
"""Owners whose batches run side by side; those of others wait."""
PAUSE_S = 1.0
"""After the disk refused something; doubles up to `MOST_PAUSE_S`."""
MOST_PAUSE_S = 60.0


class Worker:
    """Runs the batches of each owner one after the other, those of several owners side by side.

    Args:
        app: the application without its gate.
        store: where batches lie.
        config: how many lines at a time.
        border: the server around it.
    """

    def __init__(self, app: ASGIApp, store: Store, config: BatchConfig, border: Border) -> None:
        self._caller = Caller(app, border)
        self._tenant_of = border.tenant_of
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
                await _insist(self._look)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):  # `wait_for` may swallow what `close` says
                        await self._news.wait()
        finally:
            left = list(self._owners.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _look(self) -> None:
        """Delete what is expired, and begin with the batches of owners that have waited longest."""
        await asyncio.to_thread(self.store.sweep)
        for batch in await asyncio.to_thread(self.store.all_batches):
            is_new = batch["status"] in OPEN and batch["owner"] not in self._owners
            if is_new and len(self._owners) < MOST_OWNERS:
                self._start(batch["owner"])

    def _start(self, owner: str) -> None:
        def is_over(_: asyncio.Task[None]) -> None:
            del self._owners[owner]
            self._news.set()  # a batch may have come since it last looked

        task = self._owners[owner] = asyncio.create_task(_insist(lambda: self._run_owner(owner)))
        task.add_done_callback(is_over)

    async def _run_owner(self, owner: str) -> None:
        """Run the batches of an owner that are there now, oldest first."""
        for batch in await asyncio.to_thread(self.store.all_batches):
            if batch["owner"] == owner and batch["status"] in OPEN:
                await self._run_batch(batch)

    async def _run_batch(self, batch: dict[str, Any]) -> None:
        """Run a batch; one that cannot go on (its file is gone, the disk is full) fails, and others run."""
        message = None
        if batch["finalizing_at"] is None:  # else its lines are done and may be files by now
            try:
                await self._run_lines(batch)
            except Exception as error:  # noqa: BLE001 - the border between batches: the client is told
                message = f"the batch cannot go on: {error}"[:300]
                log.warning("batch %s: %s", batch["id"], message)
        await _insist(lambda: self._end(batch, message))

    async def _run_lines(self, batch: dict[str, Any]) -> None:
        name, owner = batch["id"], batch["owner"]
        tenant = self._tenant_of(owner)
        if tenant is None:
            raise LookupError(f"the key {owner!r} that it belongs to is none of this server's any more")
        set_caller(Terms(tenant=tenant, is_background=True))
        done = await asyncio.to_thread(self._done, name)
        todo = iter(await asyncio.to_thread(self._todo, batch["input_file_id"], done))
        if batch["status"] == "cancelling":
            self._cancelled.add(name)
        else:
            batch |= {"status": "in_progress", "in_progress_at": batch["in_progress_at"] or int(unix_s())}
        await self._save(batch, done)
        tasks = [
            asyncio.create_task(self._work(batch, todo, done)) for _ in range(self.config.max_lines_running)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, batch: dict[str, Any], todo: Iterator[int], done: dict[str, bool]) -> None:
        name, file = batch["id"], self.store.content_path(batch["input_file_id"])
        for offset in todo:
            if name in self._cancelled:
                return
            line = await asyncio.to_thread(line_at, file, offset)
            answer = await self._caller.answer(line, lambda: name in self._cancelled)
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
            suffix, text = ".out" if is_good else ".err", msgspec.json.encode(result)
            await asyncio.to_thread(self.store.append, name, suffix, text, batch["owner"])
            done[line.custom_id] = is_good
            await self._save(batch, done)

    async def _save(self, batch: dict[str, Any], done: dict[str, bool]) -> None:
        async with self._saving:  # lines end together, cancels come between: the last word must be the latest
            good = sum(done.values())
            counts = batch["request_counts"]
            batch["request_counts"] = {**counts, "completed": good, "failed": len(done) - good}
            if batch["id"] in self._cancelled and batch["status"] == "in_progress":
                batch |= {"status": "cancelling", "cancelling_at": int(unix_s())}
            await asyncio.to_thread(self.store.put, "batch", dict(batch))

    async def _end(self, batch: dict[str, Any], message: str | None) -> None:
        """Make files of the results and write down how it ended; goes on where the disk stopped it.

        What ended it and the names of the files are on the disk before the first result moves.
        """
        name = batch["id"]
        if batch["finalizing_at"] is None:
            names = await asyncio.to_thread(self.store.name_results, name)
            ending: dict[str, Any] = {"status": "finalizing", "finalizing_at": int(unix_s()), **names}
            if message is not None:
                problem = {"code": "failed", "message": message, "line": None, "param": None}
                ending["errors"] = {"object": "list", "data": [problem]}
            await self._change(batch, ending)
        await asyncio.to_thread(self.store.keep_results, batch)
        is_cancelled = name in self._cancelled or batch.get("cancelling_at") is not None
        end = "failed" if batch.get("errors") else "cancelled" if is_cancelled else "completed"
        expires_at = self.store.end_of_results()
        await self._change(batch, {"status": end, f"{end}_at": int(unix_s()), "expires_at": expires_at})
        await asyncio.to_thread(self.store.drop_lines, name)
        self._cancelled.discard(name)

    async def _change(self, batch: dict[str, Any], change: dict[str, Any]) -> None:
        """Change a batch once the change is on the disk."""
        async with self._saving:
            if batch["id"] in self._cancelled and batch.get("cancelling_at") is None:
                change = {"cancelling_at": int(unix_s()), **change}
            await asyncio.to_thread(self.store.put, "batch", batch | change)
            batch |= change

    def _done(self, name: str) -> dict[str, bool]:
        return {
            msgspec.json.decode(line)["custom_id"]: suffix == ".out"
            for suffix, _ in RESULTS
            for line in self.store.done_lines(name, suffix)
        }

    def _todo(self, file: str, done: dict[str, bool]) -> list[int]:
        """Where the lines begin that are to be answered: no more of them is kept in memory."""
        return [offset for offset, name in find_lines(self.store.content_path(file)) if name not in done]


async def _insist(act: Callable[[], Awaitable[None]]) -> None:
    """Do something until the disk lets it."""
    pause_s = PAUSE_S
    while True:
        try:
            return await act()
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            log.warning("batches wait %g s for the disk: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)
