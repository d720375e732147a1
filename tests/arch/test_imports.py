"""What may be imported where, checked on the running interpreter rather than on the source."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(m for m in sys.modules if '.' not in m))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_the_package_imports_no_numbers():
    assert not loaded_after("import headrace") & {
        "numpy",
        "torch",
        "tokenizers",
        "jinja2",
        "starlette",
        "typer",
    }


def test_public_names_resolve():
    code = "import headrace; assert all(getattr(headrace, n) is not None for n in headrace.__all__)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_help_page_imports_no_numbers():
    loaded = loaded_after(
        "import sys; sys.argv = ['headrace', '--help']\n"
        "import contextlib, io\n"
        "from headrace.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()"
    )
    assert "headrace" in loaded
    assert not loaded & {"numpy", "torch", "tokenizers"}


def test_the_engine_does_not_import_torch():
    assert not loaded_after("import headrace.engine.llm, headrace.engine.async_llm") & {
        "torch",
        "transformers",
    }


def test_every_folder_says_what_it_owns():
    folders = {p.parent for p in (ROOT / "headrace").rglob("*.py")}
    silent = [str(f) for f in folders if '"""' not in (f / "__init__.py").read_text()[:200]]
    assert not silent


def test_the_core_does_not_name_plugins():
    """Policies, families and formats are data to the spine: their names appear in their own files only."""
    plugins = {"qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mistral", "q4_k", "q6_k"}
    spine = [
        *(ROOT / "headrace/host/sched").glob("*.py"),
        *(ROOT / "headrace/host/kv").glob("*.py"),
        *(ROOT / "headrace/compute/runner").glob("*.py"),
        ROOT / "headrace/compute/models/decoder.py",
    ]
    named = {f"{p.name}: {w}" for p in spine for w in plugins if w in p.read_text()}
    assert len(spine) > 10
    assert not named
