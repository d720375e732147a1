"""Files and batches on disk: each as a JSON document that is replaced whole, results as lines appended.

    files/ID.json      what the file is          files/ID.data     its content
    batches/ID.json    the batch's state         batches/ID.out, ID.err     lines done so far

A line counts as done once it ends with a newline; what a crash tore is cut off when the batch goes on. At the
end of a batch its lines become the content of files by their names alone.
"""

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import unix_s
from headrace.base.config import BatchConfig
from headrace.base.errors import NotFoundError, OverloadError

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""States of batches that have not ended."""
RESULTS = ((".out", "output_file_id"), (".err", "error_file_id"))
"""Where lines of results lie, and which field of a batch names the file that they become."""
SLICE_BYTES = 1 << 20
"""Results that an owner may write between two looks at how much room there is for them."""
_ID = re.compile(r"(file|batch)_[0-9a-f]{32}")


class Store:
    """One folder; only one server may use it at a time. Methods may be called from several threads.

    Args:
        folder: created when it is not there.
        config: how much it may hold, each key's part of that, and how long results are kept.
    """

    def __init__(self, folder: Path, config: BatchConfig) -> None:
        self._folder = folder
        self._config = config
        self._filling = threading.Lock()
        """Held from the look at what is there to the end of writing more."""
        self._appending = threading.Lock()
        self._room_left: dict[str, int] = {}
        """By owner, bytes of results until the next look."""
        for name in ("files", "batches"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    # ---- documents ----

    def owned(self, kind: str, owner: str) -> list[dict[str, Any]]:
        """All documents of an owner, newest first; `kind` is `file` or `batch`."""
        own = [found for found in self._every(kind) if found["owner"] == owner and not _is_expired(found)]
        return sorted(own, key=lambda found: (found["created_at"], found["id"]), reverse=True)

    def all_batches(self) -> list[dict[str, Any]]:
        """Every batch, oldest first."""
        return sorted(self._every("batch"), key=lambda found: (found["created_at"], found["id"]))

    def get(self, kind: str, name: str, owner: str) -> dict[str, Any]:
        """One document.

        Raises:
            NotFoundError: it is not there, or belongs to somebody else, or its time is over.
        """
        path = self._path(kind, name, ".json") if _ID.fullmatch(name) and name.startswith(kind) else None
        found = self._load(path) if path is not None else None
        if found is None or found["owner"] != owner or _is_expired(found):
            raise NotFoundError(f"no {kind} {name[:64]!r} here", param=f"{kind}_id")
        return found

    def put(self, kind: str, document: dict[str, Any]) -> None:
        """Write a document; whoever reads sees the old one or the new one."""
        self._replace(self._path(kind, document["id"], ".json"), msgspec.json.encode(document))

    def add_batch(self, about: dict[str, Any], owner: str) -> dict[str, Any]:
        """Keep a batch.

        Raises:
            OverloadError: there are as many as there may be.
        """
        with self._filling:
            self._check_room("batch", owner, 0)
            made = _new("batch", about, owner)
            self.put("batch", made)
        return made

    def delete_batch(self, name: str) -> None:
        """Forget a batch that `get` has found and that has ended; its results are files of their own."""
        self.drop_lines(name)
        self._path("batch", name, ".json").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what is expired: results, and batches that ended long ago."""
        for kind, delete in (("file", self.delete_file), ("batch", self.delete_batch)):
            for found in self._every(kind):
                if _is_expired(found):
                    delete(found["id"])

    def end_of_results(self) -> int:
        """Unix seconds until which results that are made now are kept."""
        return int(unix_s() + self._config.result_days * 86_400)

    # ---- contents ----

    def add_file(self, content: bytes, name: str, owner: str) -> dict[str, Any]:
        """Keep an upload.

        Raises:
            OverloadError: the store is full, or the owner's part of it.
        """
        with self._filling:
            self._check_room("file", owner, len(content))
            made = _new("file", _about(len(content), name, "batch", None), owner)
            self._replace(self._path("file", made["id"], ".data"), content)
            self.put("file", made)
        return made

    def content(self, name: str) -> bytes:
        """The content of a file that `get` has found."""
        return self.content_path(name).read_bytes()

    def content_path(self, name: str) -> Path:
        """Where the content of a file lies that `get` has found."""
        return self._path("file", name, ".data")

    def delete_file(self, name: str) -> None:
        """Forget a file that `get` has found."""
        self._path("file", name, ".json").unlink(missing_ok=True)
        self._path("file", name, ".data").unlink(missing_ok=True)

    # ---- results ----

    def done_lines(self, name: str, suffix: str) -> Iterator[bytes]:
        """Whole lines that a batch has written, one at a time; a torn last one is cut off."""
        path = self._path("batch", name, suffix)
        if not path.exists():
            return
        end = 0
        with path.open("r+b") as text:
            for line in text:
                if line.endswith(b"\n"):
                    end += len(line)
                    yield line
            text.truncate(end)

    def append(self, name: str, suffix: str, line: bytes, owner: str) -> None:
        """Write a line of results; it is on the disk, whole, when this returns, and else not at all.

        Raises:
            OverloadError: the results of this owner, or of all, would exceed their room.
        """
        with self._appending, self._path("batch", name, suffix).open("ab", buffering=0) as out:
            self._take_room(owner, len(line) + 1)
            start, left = out.tell(), memoryview(line + b"\n")
            try:
                while left:
                    left = left[out.write(left) :]
                os.fsync(out.fileno())
            except OSError:
                os.ftruncate(out.fileno(), start)
                raise

    def name_results(self, name: str) -> dict[str, str | None]:
        """Names of files for the results of a batch, by the fields that tell them; None: it has none."""
        return {
            field: f"file_{uuid.uuid4().hex}" if any(True for _ in self.done_lines(name, suffix)) else None
            for suffix, field in RESULTS
        }

    def keep_results(self, batch: dict[str, Any]) -> None:
        """Make files of a batch's results, under the names it tells; what is done stays when called again."""
        for suffix, field in RESULTS:
            source = self._path("batch", batch["id"], suffix)
            if not batch[field] or not source.exists():
                continue
            about = _about(
                source.stat().st_size, f"{batch['id']}{suffix}.jsonl", "batch_output", self.end_of_results()
            )
            self.put("file", _new("file", about, batch["owner"], batch[field]))
            source.replace(self.content_path(batch[field]))

    def drop_lines(self, name: str) -> None:
        """The results have become files."""
        for suffix, _ in RESULTS:
            self._path("batch", name, suffix).unlink(missing_ok=True)

    # ---- inside ----

    def _check_room(self, kind: str, owner: str, num_bytes: int) -> None:
        """Refuse what exceeds the bounds of all, or the owner's part; a server without keys has one owner."""
        config, found = self._config, self._every(kind)
        own = [document for document in found if document["owner"] == owner]
        part = config.key_share if owner else 1.0
        for documents, share, whose in ((own, part, "this key"), (found, 1.0, "this server")):
            most = max(1, int(config.max_files * share))
            if len(documents) >= most:
                what = "files" if kind == "file" else "batches"
                raise OverloadError(
                    f"{whose} has {len(documents)} {what}, limit {most}; delete some", retry_after_s=60.0
                )
            held, most = sum(d.get("bytes", 0) for d in documents), int(config.max_bytes * share)
            if held + num_bytes > most:
                raise OverloadError(
                    f"files of {whose} have {held} bytes and {num_bytes} more came, limit {most}; "
                    "delete some",
                    retry_after_s=60.0,
                )

    def _take_room(self, owner: str, num_bytes: int) -> None:
        """Count results against their bounds, which are as large as those of uploads; looks once a slice."""
        left = self._room_left.get(owner, 0)
        if num_bytes > left:
            left = max(num_bytes, SLICE_BYTES)
            part = self._config.key_share if owner else 1.0
            held = self._held_results()
            for size, share, whose in (
                (held.get(owner, 0), part, "this key"),
                (sum(held.values()), 1.0, "this server"),
            ):
                most = int(self._config.max_bytes * share)
                if size + num_bytes > most:
                    raise OverloadError(
                        f"results of {whose} have {size} bytes and {num_bytes} more came, limit {most}; "
                        "delete files of results",
                        retry_after_s=60.0,
                    )
                left = min(left, most - size)
        self._room_left[owner] = left - num_bytes

    def _held_results(self) -> dict[str, int]:
        """Bytes of results by owner, in files and of batches that still run."""
        held: dict[str, int] = {}
        for file in self._every("file"):
            if file.get("purpose") == "batch_output":
                held[file["owner"]] = held.get(file["owner"], 0) + file["bytes"]
        for batch in self._every("batch"):
            for suffix, _ in RESULTS:
                with contextlib.suppress(FileNotFoundError):
                    size = self._path("batch", batch["id"], suffix).stat().st_size
                    held[batch["owner"]] = held.get(batch["owner"], 0) + size
        return held

    def _path(self, kind: str, name: str, suffix: str) -> Path:
        return self._folder / ("files" if kind == "file" else "batches") / f"{name}{suffix}"

    def _every(self, kind: str) -> list[dict[str, Any]]:
        paths = (self._folder / ("files" if kind == "file" else "batches")).glob("*.json")
        return [found for path in paths if (found := self._load(path)) is not None]

    @staticmethod
    def _load(path: Path) -> dict[str, Any] | None:
        """A document; None when it is gone or damaged: the others stay of use."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            return None
        return found if {"id", "owner", "created_at"} <= found.keys() else None

    @staticmethod
    def _replace(path: Path, data: bytes) -> None:
        part = path.with_suffix(path.suffix + ".part")
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)


def _new(kind: str, about: dict[str, Any], owner: str, name: str | None = None) -> dict[str, Any]:
    head = {"id": name or f"{kind}_{uuid.uuid4().hex}", "object": kind, "created_at": int(unix_s())}
    return {**head, **about, "owner": owner}


def _about(num_bytes: int, name: str, purpose: str, expires_at: int | None) -> dict[str, Any]:
    return {
        "bytes": num_bytes,
        "filename": name,
        "purpose": purpose,
        "status": "processed",
        "expires_at": expires_at,
    }


def _is_expired(document: dict[str, Any]) -> bool:
    """Whether its time is over; a batch has one only when it has ended."""
    end = document.get("expires_at")
    return end is not None and document.get("status") not in OPEN and end <= unix_s()
