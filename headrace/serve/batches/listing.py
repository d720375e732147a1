"""Pages of lists: which parameters a list takes, and the part of it that they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from headrace.base.errors import RequestError

AFTER: Mapping[str, Any] = {"type": "string", "minLength": 1}
FILES_QUERY: Mapping[str, Mapping[str, Any]] = {
    "after": AFTER,
    "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "purpose": {"type": "string", "enum": ["batch", "batch_output"]},
}
"""Parameters of the list of files, as OpenAI's."""
BATCHES_QUERY: Mapping[str, Mapping[str, Any]] = {
    "after": AFTER,
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
}
"""Parameters of the list of batches, as OpenAI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What of a list is asked for."""

    limit: int
    after: str | None = None
    """Id of the last one that the client has; None: from the start."""
    is_ascending: bool = False
    """Oldest first."""
    purpose: str | None = None


def read_page(request: Request, query: Mapping[str, Mapping[str, Any]]) -> Page:
    """The page that a request asks for.

    Args:
        request: its query string is read.
        query: the parameters that this list takes, with their schemas.

    Raises:
        RequestError: a parameter is unknown, given twice, or has no possible value; `param` names it.
    """
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in query:
            known = ", ".join(query)
            raise RequestError(f"unknown parameter {name[:100]!r}; this list takes {known}", param=name[:100])
        if name in given:
            raise RequestError(f"the parameter {name} is given twice", param=name)
        allowed = query[name].get("enum")
        if not value or (allowed and value not in allowed):
            wanted = f"one of {', '.join(allowed)}" if allowed else "a value"
            raise RequestError(f"{name} must be {wanted}, got {value[:40]!r}", param=name)
        given[name] = value
    return Page(
        limit=_limit(given.get("limit"), query["limit"]),
        after=given.get("after"),
        is_ascending=given.get("order") == "asc",
        purpose=given.get("purpose"),
    )


def cut(documents: Sequence[Mapping[str, Any]], page: Page) -> dict[str, Any]:
    """The list that answers.

    Args:
        documents: all of them as clients see them, newest first.
        page: which are asked for.

    Raises:
        RequestError: `after` is none of them.
    """
    found = [d for d in documents if page.purpose in {None, d.get("purpose")}]
    if page.is_ascending:
        found.reverse()
    if page.after is not None:
        place = next((i for i, d in enumerate(found) if d["id"] == page.after), None)
        if place is None:
            raise RequestError(f"after: {page.after[:64]!r} is not in this list", param="after")
        found = found[place + 1 :]
    data = found[: page.limit]
    return {
        "object": "list",
        "data": data,
        "has_more": len(found) > len(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _limit(value: str | None, schema: Mapping[str, Any]) -> int:
    if value is None:
        return schema["default"]
    least, most = schema["minimum"], schema["maximum"]
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and least <= int(value) <= most):
        raise RequestError(
            f"limit must be a whole number in [{least}, {most}], got {value[:40]!r}", param="limit"
        )
    return int(value)
