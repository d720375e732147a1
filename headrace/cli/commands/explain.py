"""Say where the time of a request went: a bar of its parts, and the largest cause in one sentence."""

import json
import sys
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from headrace.base.env import settings_from_env
from headrace.base.errors import HeadraceError, NotFoundError, RequestError, UnreachableError

LOOKS = {
    "tokenize": ("bright_black", "T"),
    "queue": ("yellow", "Q"),
    "prefix_lookup": ("cyan", "L"),
    "prefill": ("blue", "P"),
    "decode": ("green", "D"),
    "verify": ("bright_green", "V"),
    "draft": ("bright_blue", "F"),
    "others_prefill": ("magenta", "O"),
    "preempted": ("red", "X"),
    "host": ("white", "H"),
    "stream_out": ("bright_cyan", "S"),
}
"""Colour and letter: a bar without colours can be read, too."""
MAX_CELLS = 100
TIMEOUT_S = 30.0
OK, NOT_FOUND = 200, 404
Parts = list[dict[str, Any]]


def command(
    request_id: Annotated[str, typer.Argument(help="Id of an answer, or the request_id that it was given.")],
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(help="The key that the request was sent with [default: HEADRACE_ACCESS_API_KEY]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the timeline as JSON.")] = False,
) -> None:
    """Say where the time of a request went, while it runs or after it ended."""
    found = fetch(url, request_id, api_key)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


def fetch(url: str, request_id: str, api_key: str | None) -> dict[str, Any]:
    """The timeline of a request.

    Raises:
        UnreachableError: there is no server. NotFoundError: it does not know the request. HeadraceError: it
        gave another error.
    """
    import httpx

    key = api_key or settings_from_env().get("access_api_key", "").partition(",")[0]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    path = f"{url.rstrip('/')}/v1/requests/{quote(request_id, safe='')}/timeline"
    try:
        answer = httpx.get(path, headers=headers, timeout=TIMEOUT_S)
        body: object = answer.json()
    except httpx.InvalidURL as error:
        raise RequestError(f"{url} is no URL: {error}; give --url http://HOST:PORT") from error
    except (httpx.HTTPError, ValueError) as error:
        raise UnreachableError(url, error) from error
    if answer.status_code != OK:
        kind = NotFoundError if answer.status_code == NOT_FOUND else HeadraceError
        raise kind(_error_of(body) or f"{answer.status_code} {answer.reason_phrase}")
    if not _is_timeline(body):
        raise HeadraceError(
            f"what answers at {url} is no Headrace server: it sent no timeline; give its --url"
        )
    return cast("dict[str, Any]", body)


def _error_of(body: object) -> str:
    """The message of an error's body, of whatever server; empty: there is none."""
    error = cast("dict[str, object]", body).get("error") if isinstance(body, dict) else None
    message = cast("dict[str, object]", error).get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def _is_timeline(body: object) -> bool:
    """Whether a body has what `show` reads."""
    if not isinstance(body, dict):
        return False
    known = cast("dict[str, object]", body)
    parts = known.get("parts")
    return (
        isinstance(parts, list)
        and isinstance(known.get("sentence"), str)
        and all(_is_part(part) for part in cast("list[object]", parts))
    )


def _is_part(value: object) -> bool:
    part = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    has_words = isinstance(part.get("name"), str) and isinstance(part.get("reason"), str)
    return has_words and isinstance(part.get("seconds"), int | float)


def show(timeline: dict[str, Any]) -> None:
    """Print bar, parts and sentence; colours only on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.host.timeline.explain import time_text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else MAX_CELLS)
    parts = cast("Parts", timeline["parts"])
    bar = Text()
    looks = marks(parts)
    cells = widths(parts, min(console.width, MAX_CELLS))
    for (colour, letter), count in zip(looks, cells, strict=True):
        bar.append(letter * count, style=f"black on {colour}")
    console.print(bar)
    total = sum(part["seconds"] for part in parts) or 1.0
    table = Table(box=None, pad_edge=False, show_header=False)
    for part, (colour, letter) in zip(parts, looks, strict=True):
        share = f"{100 * part['seconds'] / total:.1f} %"
        name = Text(f"{letter} {part['name']}", style=colour)
        table.add_row(name, time_text(part["seconds"]), share, Text(part["reason"]))
    console.print(table)
    console.print(timeline["sentence"], markup=False, soft_wrap=True)


def widths(parts: Parts, num_cells: int) -> list[int]:
    """Cells of each part: shares of the whole, whole numbers that add up to `num_cells`."""
    total = sum(part["seconds"] for part in parts)
    if not total > 0.0:
        return [0] * len(parts)
    ends: list[int] = []
    passed = 0.0
    for part in parts:
        passed += part["seconds"]
        ends.append(round(num_cells * passed / total))
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def marks(parts: Parts) -> list[tuple[str, str]]:
    """Colour and letter of each part: a capital for the first of a name, then small ones."""
    seen: set[str] = set()
    found: list[tuple[str, str]] = []
    for part in parts:
        colour, letter = LOOKS.get(part["name"], ("white", "?"))
        found.append((colour, letter.lower() if part["name"] in seen else letter))
        seen.add(part["name"])
    return found
