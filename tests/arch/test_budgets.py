"""Sizes are reviewed numbers: what outgrows a budget is split, or listed with a reason in budgets.toml."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.config import all_settings

ROOT = Path(__file__).parents[2]
ALLOWED = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text())
PYTHON = sorted((ROOT / "headrace").rglob("*.py"))
NATIVE = sorted(p for ext in ("*.cc", "*.h", "*.inc") for p in (ROOT / "native").rglob(ext))
PLUGIN_FOLDERS = {
    "families",
    "formats",
    "schemes",
    "policy",
    "routes",
    "checks",
    "commands",
    "kinds",
    "proposers",
    "media",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def length(node: ast.AST) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1  # type: ignore[attr-defined]


def unlisted(found: dict[str, int], limit: int, section: str) -> dict[str, int]:
    return {k: v for k, v in found.items() if v > limit and k not in ALLOWED[section]}


def test_there_is_something_to_measure():
    assert len(PYTHON) > 30
    assert len(NATIVE) > 5


def test_python_files_stay_small():
    assert not unlisted({name_of(p): len(p.read_text().splitlines()) for p in PYTHON}, 400, "files")


def test_native_files_stay_small():
    assert not unlisted({name_of(p): len(p.read_text().splitlines()) for p in NATIVE}, 600, "files")


@pytest.mark.parametrize(
    ("kinds", "limit", "section"),
    [((ast.FunctionDef, ast.AsyncFunctionDef), 60, "functions"), ((ast.ClassDef,), 250, "classes")],
)
def test_functions_and_classes_stay_small(kinds, limit, section):
    found = {f"{name_of(p)}:{n.name}": length(n) for p in PYTHON for n in nodes(p) if isinstance(n, kinds)}
    assert not unlisted(found, limit, section)


def test_value_types_stay_narrow():
    found = {}
    for path in PYTHON:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(d) for d in node.decorator_list
            ):
                count = sum(isinstance(s, ast.AnnAssign) for s in node.body)
                found[f"{name_of(path)}:{node.name}"] = count
    assert not unlisted(found, 12, "fields")


def test_folders_stay_small():
    found = {}
    for folder in {p.parent for p in PYTHON}:
        if folder.name not in PLUGIN_FOLDERS:
            found[name_of(folder)] = sum(1 for f in folder.glob("*.py") if f.name != "__init__.py")
    assert not unlisted(found, 15, "folders")


def test_exceptions_are_still_needed_and_have_a_reason():
    for section, entries in ALLOWED.items():
        for name, reason in entries.items():
            assert (ROOT / name.split(":")[0]).exists(), f"{section}: {name} is gone; remove its exception"
            assert len(reason.split()) >= 4, f"{section}: {name} needs a reason"


def test_settings_stay_few():
    assert 20 < len(all_settings()) <= 60
