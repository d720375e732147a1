"""Write docs/api_fields.md from the models of request bodies: `python docs/make_fields.py`."""

from pathlib import Path

from headrace.serve.app import ROUTE_FILES
from headrace.serve.endpoint import Endpoint
from headrace.serve.schema.support import LABELS

HEAD = """# Fields of request bodies

Generated from the routes by `make docs`; a test sends every field that the official clients document. Nothing
that is asked for is ignored: a field that is not here is refused with 400 and the nearest known name.

- **yes**: has its documented effect.
- **label**: names the caller or hints at caching; accepted, changes no answer.
- **only** values: not supported; passes with a value that asks for nothing, else 400 with its name.
- empty: the endpoint does not know it, 400.
"""
PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
}
HINTS = {*LABELS, "cache_control"}


def cell(endpoint: Endpoint, name: str) -> str:
    about = endpoint.about
    if name in about.neutral:
        values = [v for v in about.neutral[name] if v is not None]
        return "only " + ", ".join(f"`{spelled(v)}`" for v in values) if values else "only null"
    if about.body is None or name not in about.body.model_fields:
        return ""
    return "label" if name in HINTS else "yes"


def spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')


def render() -> str:
    """The whole page."""
    routes = {r.path: r for routes in ROUTE_FILES.all().values() for r in routes if isinstance(r, Endpoint)}
    found = [routes[path] for path in PATHS]
    names = {name for r in found if r.about.body is not None for name in r.about.body.model_fields}
    names |= {name for r in found for name in r.about.neutral}
    rows = [f"| field | {' | '.join(PATHS.values())} |", "|---|" + "---|" * len(PATHS)]
    rows += [f"| `{name}` | " + " | ".join(cell(r, name) for r in found) + " |" for name in sorted(names)]
    return HEAD + "\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "api_fields.md").write_text(render())
