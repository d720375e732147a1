"""Where loading takes matrices from: a file of packed weights, or packing; then the file is written."""

import os
from collections.abc import Sequence
from threading import Thread
from typing import Any

import numpy as np

from headrace.base.errors import CheckpointError
from headrace.compute.ops.api import Backend, Handle, Packer, Weight
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.packed.cache import OpenPacked, PackedCache, ignored
from headrace.compute.weights.packed.file import Draft, Entry, order_digest

MIN_BYTES = 32 << 20
"""Less is packed faster than a file is looked for."""


class PackedStore:
    """Matrices of one model for one backend.

    Opening brings a file's weights into memory. `finish` writes a new file in a thread when any matrix had to
    be packed. The end of a program waits for that thread, that of the engine process for some seconds; where
    it was not enough, the next start that packs writes the file.
    """

    def __init__(self, backend: Backend, checkpoint: Checkpoint, cache: PackedCache | None) -> None:
        self._backend = backend
        self._checkpoint = checkpoint
        self._packer: Packer | None = backend.packer if checkpoint.format != "dummy" else None
        self._cache = cache if self._packer is not None else None
        self._entries: dict[str, Entry] = {}
        self._region: Any = None
        self._handles: list[tuple[Sequence[Weight], Handle]] = []
        self._num_made = 0
        if self._cache is not None and self._packer is not None:
            self._layout = self._packer.layout_of(checkpoint.weights.forms())
            self._path = self._cache.path(checkpoint.path, checkpoint.content_id, self._layout)
            opened = self._cache.open(self._path, checkpoint.content_id, self._layout)
            if opened is not None:
                self._take(opened, self._packer, self._cache.mode)

    @property
    def is_found(self) -> bool:
        """Whether a file is in use."""
        return self._region is not None

    def matrix(self, parts: Sequence[Weight]) -> Handle:
        """`Backend.matrix`, from the file where all parts are in it."""
        entries = [self._entry(part) for part in parts]
        if self._packer is not None and entries and all(e is not None for e in entries):
            offsets = [e.offset for e in entries if e is not None]
            try:
                handle = self._packer.adopt(parts, self._region, offsets)
            except CheckpointError as error:  # its table does not add up: it is of no use for the rest either
                ignored(self._path, error)
                self._entries = {}
                handle = self._make(parts)
        else:
            handle = self._make(parts)
        if self._cache is not None:
            self._handles.append((parts, handle))
        return handle

    def _make(self, parts: Sequence[Weight]) -> Handle:
        self._num_made += 1
        return self._backend.matrix(parts)

    def finish(self) -> Thread | None:
        """All matrices are taken over; the thread that writes a file, if one is written."""
        cache, packer = self._cache, self._packer
        handles, self._handles = self._handles, []
        if cache is None or packer is None or not self._num_made:
            return None
        matrices = [
            (part, data)
            for parts, handle in handles
            for part, data in zip(parts, packer.packed(handle), strict=True)
        ]
        draft = Draft(
            identity=self._checkpoint.content_id,
            layout=self._layout,
            source=str(self._checkpoint.path.absolute()),
            matrices=matrices,
            chunk=packer.chunk,
            checksum=packer.checksum,
        )
        if draft.data_bytes < MIN_BYTES:
            return None
        writer = Thread(target=cache.write, args=(self._path, draft), name="headrace-packed")
        writer.start()
        return writer

    def _take(self, opened: OpenPacked, packer: Packer, mode: str) -> None:
        table = opened.table
        try:
            if table.chunk != packer.chunk:
                raise CheckpointError(f"its sums are of {table.chunk} bytes")
            self._region = packer.load(
                opened.fd, table.data_start, table.data_bytes, np.ascontiguousarray(table.sums), mode
            )
            self._entries = dict(table.entries)
        except CheckpointError as error:
            ignored(opened.path, error)
        finally:
            os.close(opened.fd)

    def _entry(self, weight: Weight) -> Entry | None:
        entry = self._entries.get(weight.name)
        if entry is None:
            return None
        found = (entry.type_name, entry.n, entry.k, entry.order)
        return entry if found == (weight.type_name, weight.n, weight.k, order_digest(weight)) else None
