"""The JSON file of a run: written after every measurement, so that a run can be cut off and gone on with."""

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Store:
    """Rows of measurements. A row has `part`, `model`, `cell`, `pair`, `who` and its figures.

    Args:
        path: the file; created at the first row.
        build: what was measured (see `build_id`).
        fresh: drop what is there.

    Raises:
        ValueError: the file holds figures of another build.
    """

    def __init__(self, path: Path, build: str, *, fresh: bool = False) -> None:
        self.path = path
        self.data: dict[str, Any] = {"build": build, "machine": {}, "peers": {}, "costs": {}, "rows": []}
        if path.is_file() and not fresh:
            self.data = json.loads(path.read_text())
            if self.data["build"] != build:
                raise ValueError(
                    f"{path} holds figures of build {self.data['build']}, this is {build}: "
                    f"write to another file (--out) or begin anew (--fresh)"
                )

    @property
    def rows(self) -> list[dict]:
        return self.data["rows"]

    def note(self, **facts: Any) -> None:
        """Set or extend a section besides the rows."""
        for name, value in facts.items():
            self.data.setdefault(name, {}).update(value)
        self._write()

    def add(self, row: dict) -> None:
        self.rows.append({**row, "at": time.strftime("%Y-%m-%dT%H:%M:%S")})
        self._write()

    def find(self, **keys: Any) -> Iterator[dict]:
        """Rows whose fields have these values."""
        return (r for r in self.rows if all(r.get(k) == v for k, v in keys.items()))

    def has(self, **keys: Any) -> bool:
        return next(self.find(**keys), None) is not None

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        partial.replace(self.path)


def build_id(root: Path = ROOT) -> str:
    """A digest of the sources that are measured; documentation and tests do not change it."""
    digest = hashlib.sha256()
    for folder, kinds in (("headrace", ("*.py",)), ("native", ("*.cc", "*.h", "*.inc"))):
        for path in sorted(p for kind in kinds for p in (root / folder).rglob(kind)):
            if path.parts[len(root.parts) : len(root.parts) + 2] not in {
                ("native", "tests"),
                ("native", "bench"),
            }:
                digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
