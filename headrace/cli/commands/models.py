"""List, fetch and remove catalogue models: `models`, `models fetch NAME`, `models rm NAME`."""

from typing import Annotated, Any

import typer

from headrace.base.errors import RequestError
from headrace.compute.weights import catalogue

ACTIONS = ("list", "fetch", "rm")


def command(
    action: Annotated[str, typer.Argument(help="list, fetch or rm")] = "list",
    name: Annotated[str | None, typer.Argument(help="The model, for fetch and rm.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List, fetch and remove models."""
    if action not in ACTIONS:
        raise RequestError(f"unknown action {action!r}; one of {', '.join(ACTIONS)}")
    if action == "list":
        _list(json)
    elif name is None:
        raise RequestError(f"models {action} needs the name of a model: {', '.join(catalogue.names())}")
    elif action == "fetch":
        print(catalogue.locate(name))
    else:
        _remove(name)


def _list(as_json: bool) -> None:
    from headrace.compute.weights.packed.cache import packed_bytes, packed_files

    files = packed_files(catalogue.packed_dir())
    rows: list[dict[str, Any]] = [
        {
            "name": e.name,
            "title": e.title,
            "license": e.license,
            "bytes": e.size_bytes,
            "packed_bytes": packed_bytes(catalogue.cached_path(e), files),
            "path": str(catalogue.cached_path(e)) if catalogue.cached_path(e).is_file() else None,
        }
        for e in catalogue.CATALOGUE
    ]
    if as_json:
        import json

        print(json.dumps(rows))
        return
    from headrace.cli.tables import print_table

    print_table(
        ("name", "model", "size", "packed", "license", "here"),
        [
            (
                str(r["name"]),
                str(r["title"]),
                f"{r['bytes'] / 1e6:.0f} MB",
                f"{r['packed_bytes'] / 1e6:.0f} MB" if r["packed_bytes"] else "-",
                str(r["license"]),
                str(r["path"] or "-"),
            )
            for r in rows
        ],
    )


def _remove(name: str) -> None:
    from headrace.compute.weights.packed.cache import remove_packed

    path = catalogue.cached_path(catalogue.entry(name))
    packed_bytes = remove_packed(path, catalogue.packed_dir())
    if not path.is_file():
        rest = f"; removed {packed_bytes / 1e6:.0f} MB of packed weights" if packed_bytes else ""
        print(f"{name} is not here{rest}")
        return
    path.unlink()
    catalogue.side_file(path).unlink(missing_ok=True)
    print(f"removed {path}")
