"""Files and batches on disk: each as a JSON document that is replaced whole, results as lines appended.

    files/ID.json      what the file is          files/ID.data     its content
    batches/ID.json    the batch's state         batches/ID.out, ID.err     lines done so far

A line counts as done once it ends with a newline; what a crash tore is cut off when the batch goes on.
"""

import os
import re
import uuid
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.clock import unix_s
from headrace.base.errors import NotFoundError, OverloadError

_ID = re.compile(r"(file|batch)_[0-9a-f]{32}")


class Store:
    """One folder; only one server may use it at a time.

    Args:
        folder: created when it is not there.
        max_files: files and batches that it may hold.
    """

    def __init__(self, folder: Path, max_files: int) -> None:
        self._folder = folder
        self._max_files = max_files
        for name in ("files", "batches"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    # ---- documents ----

    def owned(self, kind: str, owner: str) -> list[dict[str, Any]]:
        """All documents of an owner, newest first; `kind` is `file` or `batch`."""
        own = [found for found in self._every(kind) if found["owner"] == owner]
        return sorted(own, key=lambda found: (found["created_at"], found["id"]), reverse=True)

    def all_batches(self) -> list[dict[str, Any]]:
        """Every batch, oldest first."""
        return sorted(self._every("batch"), key=lambda found: (found["created_at"], found["id"]))

    def get(self, kind: str, name: str, owner: str) -> dict[str, Any]:
        """One document.

        Raises:
            NotFoundError: it is not there, or belongs to somebody else.
        """
        path = self._path(kind, name, ".json") if _ID.fullmatch(name) and name.startswith(kind) else None
        found = self._load(path) if path is not None else None
        if found is None or found["owner"] != owner:
            raise NotFoundError(f"no {kind} {name[:64]!r} here", param=f"{kind}_id")
        return found

    def put(self, kind: str, document: dict[str, Any]) -> None:
        """Write a document; whoever reads sees the old one or the new one."""
        self._replace(self._path(kind, document["id"], ".json"), msgspec.json.encode(document))

    def new(self, kind: str, document: dict[str, Any], owner: str) -> dict[str, Any]:
        """A document with an id, an owner and a time; it is not written yet.

        Raises:
            OverloadError: the store is full.
        """
        folder = self._folder / ("files" if kind == "file" else "batches")
        is_bounded = document.get("purpose") != "batch_output"
        if is_bounded and sum(1 for _ in folder.glob("*.json")) >= self._max_files:
            raise OverloadError(f"there are {self._max_files} {folder.name}; delete some", retry_after_s=60.0)
        head = {"id": f"{kind}_{uuid.uuid4().hex}", "object": kind, "created_at": int(unix_s())}
        return {**head, **document, "owner": owner}

    # ---- contents ----

    def add_file(self, content: bytes, name: str, purpose: str, owner: str) -> dict[str, Any]:
        """Keep a file.

        Raises:
            OverloadError: the store is full; results always find room.
        """
        about = {"bytes": len(content), "filename": name, "purpose": purpose, "status": "processed"}
        made = self.new("file", about, owner)
        self._replace(self._path("file", made["id"], ".data"), content)
        self.put("file", made)
        return made

    def content(self, name: str) -> bytes:
        """The content of a file that `get` has found."""
        return self._path("file", name, ".data").read_bytes()

    def delete_file(self, name: str) -> None:
        """Forget a file that `get` has found."""
        self._path("file", name, ".json").unlink(missing_ok=True)
        self._path("file", name, ".data").unlink(missing_ok=True)

    def done_lines(self, name: str, suffix: str) -> list[bytes]:
        """Whole lines that a batch has written; a torn last one is cut off."""
        path = self._path("batch", name, suffix)
        if not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._replace(path, whole)
        return whole.splitlines()

    def append(self, name: str, suffix: str, line: bytes) -> None:
        """Write a line of results; it is on the disk when this returns."""
        with self._path("batch", name, suffix).open("ab") as out:
            out.write(line + b"\n")
            out.flush()
            os.fsync(out.fileno())

    def drop_lines(self, name: str) -> None:
        """The results have become files."""
        for suffix in (".out", ".err"):
            self._path("batch", name, suffix).unlink(missing_ok=True)

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
