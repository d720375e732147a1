"""Docs that can be checked are checked: the tree, the settings, the links, the commands."""

import importlib.util
import re
from pathlib import Path

from headrace.base.config import all_settings

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tree_in_docs() -> set[str]:
    block = re.search(r"```tree\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
    assert block
    return {line.split()[0].rstrip("/") for line in block[1].splitlines() if line.strip()}


def tree_on_disk() -> set[str]:
    return {p.parent.relative_to(ROOT).as_posix() for p in (ROOT / "headrace").rglob("__init__.py")}


def test_the_tree_in_the_docs_is_the_tree_on_disk():
    assert tree_in_docs() == tree_on_disk()


def test_the_settings_page_is_the_settings_tree():
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "docs/make_settings.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = (ROOT / "docs/settings.md").read_text()
    assert text == page.render(), "run `make docs`"
    assert all(f"`--{s.flag}`" in text and s.help in text for s in all_settings())


def test_the_page_of_fields_is_what_the_routes_say():
    spec = importlib.util.spec_from_file_location("make_fields", ROOT / "docs/make_fields.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert (ROOT / "docs/api_fields.md").read_text() == page.render(), "run `make docs`"


def test_links_inside_the_docs_lead_somewhere():
    pattern = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")
    broken = [
        f"{d.name}: {t}" for d in DOCS for t in pattern.findall(d.read_text()) if not (d.parent / t).exists()
    ]
    assert not broken


def test_make_targets_named_in_the_docs_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {m for doc in DOCS for m in re.findall(r"`make ([a-z-]+)", doc.read_text())}
    assert named
    assert named <= targets


def test_files_named_in_the_docs_exist():
    pattern = re.compile(r"`((?:headrace|native|tests|docs|benchmarks)/[\w./-]+\.(?:py|cc|h|md|toml))`")
    missing = {
        f"{d.name}: {f}" for d in DOCS for f in pattern.findall(d.read_text()) if not (ROOT / f).exists()
    }
    assert not missing
