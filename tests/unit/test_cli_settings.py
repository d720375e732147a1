"""One tree from four places: flag, environment, file, default."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.config import EngineConfig, all_settings
from headrace.base.errors import ConfigError
from headrace.cli import main as main_module
from headrace.cli.settings import gather, parse


def test_nothing_given_is_the_default_tree() -> None:
    assert gather({}, None, {}).config == EngineConfig()


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("serve: {port: 1, host: a, drain_s: 2}\nkv: {num_blocks: null}\n")
    environment = {"serve_port": "2", "serve_host": "b"}
    got = gather({"serve.port": 3, "serve.host": None}, file, environment)
    assert (got.config.serve.port, got.config.serve.host, got.config.serve.drain_s) == (3, "b", 2.0)
    assert got.config.kv.num_blocks is None
    assert got.origin_by_name["serve.port"] == "--port"
    assert got.origin_by_name["serve.host"] == "HEADRACE_SERVE_HOST"
    assert got.origin_by_name["serve.drain_s"] == f"file {file}"
    assert "schedule.policy" not in got.origin_by_name


def test_every_setting_can_be_given_in_the_environment() -> None:
    samples = {"int": "7", "float": "7.5", "bool": "off", "str": "text", "tuple": "a, b"}
    for info in all_settings():
        text = info.choices[-1] if info.choices else samples[info.type_name.partition(" | ")[0]]
        config = gather({}, None, {f"{info.section}_{info.name}": text}).config
        assert getattr(getattr(config, info.section), info.name) == parse(info, text, "x")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("serve: {prt: 1}", "did you mean serve.port"),
        ("sreve: {port: 1}", "did you mean serve"),
        ("serve: 5", "must hold settings"),
        ("- 1", "must hold sections"),
        ("serve: {port: a}", "whole number"),
        ("serve: {port: true}", "whole number"),
        ("serve: {port: 1.5}", "whole number"),
        ("serve: {in_process: 1}", "true or false"),
        ("serve: {host: 5}", "must be text"),
        ("access: {api_key: {a: b}}", "a list of texts"),
        ("access: {api_key: [1]}", "a list of texts"),
        ("serve: {drain_s: .nan}", "a number"),
        ("serve: {log_level: loud}", "one of debug, info"),
        ("serve: {port: null}", "whole number"),
        ("a: [", "cannot read"),
        ("!!python/object/apply:os.system ['true']", "cannot read"),
        ("[" * 5000, "cannot read"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(body)
    with pytest.raises(ConfigError, match=message):
        gather({}, file, {})


def test_unknown_variables_of_a_section_are_errors() -> None:
    with pytest.raises(ConfigError, match="did you mean HEADRACE_SERVE_PORT"):
        gather({}, None, {"serve_prt": "1"})
    assert gather({}, None, {"cache_dir": "/x"}).config == EngineConfig()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_is_light_and_lists_the_commands() -> None:
    code = (
        "import sys\nfrom headrace.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'torch', 'pydantic', 'starlette', 'asyncio', 'yaml', 'rich'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
        "print('COMMANDS', sorted(m for m in sys.modules if m.startswith('headrace.cli.commands.')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for name in ("serve", "generate", "chat", "models", "inspect"):
        assert f"  {name} " in ran.stdout
    assert "HEAVY []" in ran.stdout
    assert "COMMANDS []" in ran.stdout


def test_a_command_has_a_flag_for_each_setting() -> None:
    shown = run("serve", "--help").stdout
    for info in all_settings():
        if (info.section, info.name) != ("model", "model"):
            assert f"--{info.flag}" in shown, info.flag


def test_errors_are_one_line_and_an_exit_code(tmp_path: Path) -> None:
    wrong = run("models", "fetch", "smollm2:135")
    assert wrong.returncode == 2
    assert "did you mean 'smollm2:135m'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    missing = run("inspect", str(tmp_path / "none.gguf"))
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 40)
    failed = run("inspect", str(broken))
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert run("serve", "--policy", "nonsense", "--check").returncode == 2
    assert run("nope").returncode == 2
    assert run("--version").stdout.strip()


def test_no_memory_is_one_line(monkeypatch, capsys):
    def fail(arguments):
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(main_module, "build", fail)
    with pytest.raises(SystemExit) as ended:
        main_module.main(["generate"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("headrace: out of memory")
