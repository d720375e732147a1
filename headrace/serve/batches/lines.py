"""Lines of a batch's input file, checked before any of them runs, and read again one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import RequestError

MAX_PROBLEMS = 20
MAX_ID_CHARS = 256


class Line(msgspec.Struct, kw_only=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class _Name(msgspec.Struct):
    custom_id: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line (counted from 1)."""

    line: int
    message: str

    def as_json(self) -> dict[str, Any]:
        """As OpenAI lists it."""
        return {"code": "invalid_line", "message": self.message, "line": self.line, "param": None}


def check_lines(content: bytes, endpoint: str, max_lines: int) -> tuple[int, list[Problem]]:
    """The number of lines and what is wrong with them.

    Raises:
        RequestError: there are none, or too many.
    """
    raw = [line for line in content.split(b"\n") if line.strip()]
    if not 1 <= len(raw) <= max_lines:
        raise RequestError(
            f"a batch has 1 to {max_lines} lines, this file has {len(raw)}", param="input_file_id"
        )
    problems: list[Problem] = []
    seen: set[str] = set()
    for number, text in enumerate(raw, start=1):
        try:
            line = read_line(text)
            if line.url != endpoint or line.method != "POST":
                raise ValueError(f"every line must be POST {endpoint}")
            if not 1 <= len(line.custom_id) <= MAX_ID_CHARS or line.custom_id in seen:
                raise ValueError("custom_id must be new in the file and have 1 to 256 characters")
            if line.body.get("stream"):
                raise ValueError("a line cannot be streamed: leave stream out")
        except ValueError as error:
            problems.append(Problem(number, str(error)[:300]))
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        seen.add(line.custom_id)
    return len(raw), problems


def read_line(text: bytes) -> Line:
    """One line.

    Raises:
        ValueError: it is no such object.
    """
    try:
        return msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no request: {error}") from error


def find_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Where each line that is not blank begins, in bytes, and its `custom_id`; holds one line at a time."""
    offset = 0
    with file.open("rb") as text:
        for line in text:
            if line.strip():
                yield offset, msgspec.json.decode(line, type=_Name).custom_id
            offset += len(line)


def line_at(file: Path, offset: int) -> Line:
    """The line that begins there."""
    with file.open("rb") as text:
        text.seek(offset)
        return read_line(text.readline())
