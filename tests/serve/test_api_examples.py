"""The examples of the API page are run as they stand."""

import re
from pathlib import Path

import pytest

from headrace.serve.app import ROUTE_FILES
from tests.serve.conftest import Live

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PAGES = {
    "/health",
    "/ready",
    "/metrics",
    "/dashboard",
    "/dashboard/events",
    "/doctor",
    "/version",
    "/v1/models/{name:path}",
    "/v1/requests/{name:path}/cancel",
}
"""Paths without an example: there is nothing to say in a body."""
WITH_A_FOLDER = ("/v1/files", "/v1/batches")
"""Need a server with --batch-dir: tests/serve/test_batches.py drives them with the official client."""


def test_every_endpoint_is_on_the_page_with_an_example() -> None:
    paths = {route.path for routes in ROUTE_FILES.all().values() for route in routes}  # type: ignore[attr-defined]
    for path in paths:
        assert path.replace("{name:path}", "{id}").replace("{name}", "{id}") in PAGE
    for path in {p for p in paths - PAGES if not p.startswith(WITH_A_FOLDER)}:
        assert any(path.replace("{name:path}", "{id}") in block for block in BLOCKS), path


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(live_server: Live, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = BLOCKS[number].replace("http://127.0.0.1:8000", live_server.url).replace("smollm2:135m", "smollm2")
    exec(compile(code, f"docs/api.md, example {number}", "exec"), {})
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= BLOCKS[number].count("print(")
