"""What a start must not import; times depend on the machine, imports do not."""

import subprocess
import sys
from pathlib import Path

from headrace.compute.weights.checkpoint import open_checkpoint

SERVING = {
    "starlette",
    "uvicorn",
    "httptools",
    "msgspec",
    "openai",
    "headrace.serve",
    "headrace.cli.commands.serve",
}
HEAVY = {
    "torch",
    "transformers",
    "pandas",
    "scipy",
    "jinja2",
    "rich",
    "asyncio",
    "numpy.random",
    "http.client",
}
FETCHING = {"urllib.request", "ssl", "huggingface_hub", "headrace.compute.weights.fetch"}


def modules_after(code: str, *arguments: str) -> set[str]:
    """Names of the modules that a fresh interpreter has imported at the end of `code`."""
    report = "\nimport sys\nsys.stderr.write('modules ' + ' '.join(sys.modules) + '\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code + report, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("modules "))
    return set(line.split()[1:])


def test_the_package_alone_imports_nothing_heavy() -> None:
    found = modules_after("import headrace\nassert headrace.__version__")
    assert found.isdisjoint({"numpy", "typer", "tokenizers", "dataclasses", *SERVING, *HEAVY, *FETCHING})
    assert {name for name in found if name.startswith("headrace")} == {"headrace"}


def test_the_library_imports_no_command_line_and_no_server(smollm2_path: Path) -> None:
    code = (
        "import sys\nfrom headrace import LLM, SamplingParams\n"
        "with LLM(sys.argv[1], threads=1) as llm:\n"
        "    assert llm.generate('The capital', SamplingParams(max_tokens=1))[0].token_ids"
    )
    found = modules_after(code, str(smollm2_path))
    assert "headrace.compute.runner.runner" in found
    assert found.isdisjoint({"typer", "pydantic", "yaml", "headrace.cli", *SERVING, *HEAVY, *FETCHING})


def test_generate_imports_what_it_uses(smollm2_path: Path) -> None:
    code = (
        "import sys\nfrom headrace.cli.main import main\n"
        "try:\n    main(['generate', sys.argv[1], 'Once', '--max-tokens', '1', '--threads', '1'])\n"
        "except SystemExit as end:\n    assert end.code in (0, None)"
    )
    found = modules_after(code, str(smollm2_path))
    assert "headrace.cli.commands.generate" in found
    assert found.isdisjoint({"yaml", *SERVING, *HEAVY, *FETCHING})
    others = {name for name in found if name.startswith("headrace.cli.commands.")}
    assert others == {"headrace.cli.commands.generate"}


def test_endpoints_are_there_before_the_engine_is_and_described_answers_when_asked_for():
    code = """
import asyncio, socket, sys
from headrace.base.config import EngineConfig
from headrace.serve import server

async def start(config, launch):
    from headrace.serve.app import ROUTE_FILES
    assert all(f"{ROUTE_FILES.package}.{name}" in sys.modules for name in ROUTE_FILES.names())
    raise ValueError("it would wait for the engine now")

server.AsyncLLM.start = start
try:
    asyncio.run(server.serve(EngineConfig(), print, socket.socket()))
except ValueError:
    from headrace.serve.described.batches import BatchList
    from headrace.serve.described.choices import ChatAnswer
    from headrace.serve.schema.chat import ChatBody
    assert ChatBody.__pydantic_complete__
    assert not ChatAnswer.__pydantic_complete__ and not BatchList.__pydantic_complete__
"""
    assert "headrace.serve.routes.chat" in modules_after(code + "else:\n    raise AssertionError\n")


def test_what_a_server_loaded_is_out_of_the_collectors_sight_before_requests_come():
    """Else full collections wait for a quarter of it, and what ended requests leave lies about until then."""
    code = """
import asyncio, gc, socket, sys
from types import SimpleNamespace
from headrace.base.config import EngineConfig
from headrace.serve import server

async def start(config, launch):
    async def close(seconds):
        sys.modules["closed"] = sys
    return SimpleNamespace(close=close)

class Loop:
    def __init__(self, *_):
        pass
    async def run(self, sock):
        assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()

server.AsyncLLM.start, server._Loop = start, Loop
server.build_app = lambda *_: (None, SimpleNamespace(at_end=[]))
asyncio.run(server.serve(EngineConfig(), print, socket.socket()))
"""
    assert "closed" in modules_after(code)


def test_a_template_is_compiled_at_its_first_use() -> None:
    code = (
        "import sys\nfrom headrace.host.text.chat import CHATML, ChatTemplate\n"
        "template = ChatTemplate(CHATML, {})\nassert 'jinja2' not in sys.modules\n"
        "assert template.render([{'role': 'user', 'content': 'x'}])"
    )
    assert "jinja2" in modules_after(code)


def test_a_script_may_end_without_closing_its_engine(smollm2_path: Path) -> None:
    code = "import sys\nfrom headrace import LLM\nllm = LLM(sys.argv[1], threads=1)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_read_weights_give_their_memory_back(smollm2_path: Path) -> None:
    weights = open_checkpoint(smollm2_path).weights
    data = weights.matrix("embed.weight").data
    before = data.sum()
    held = file_pages_kib()
    weights.release()
    assert held - file_pages_kib() > data.nbytes // 1024 // 2
    assert data.sum() == before


def file_pages_kib() -> int:
    """Resident pages of mapped files, of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssFile"].split()[0])
