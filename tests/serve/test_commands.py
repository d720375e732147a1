"""Commands on the embedded model, and what is left when the server is killed."""

import inspect
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.base.config import ServeConfig, all_settings
from headrace.base.errors import AddressTakenError
from headrace.cli.commands.serve import command as serve_command
from headrace.serve.address import bind, listen
from tests.serve.conftest import serving


def run(*arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    threads = ["--threads", "1"] if arguments[0] in {"generate", "chat"} else []
    command = [sys.executable, "-m", "headrace.cli.main", *arguments, *threads]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=text)


def test_generate_prints_text_or_one_object(smollm2_path: Path) -> None:
    ask = ("generate", str(smollm2_path), "-", "--max-tokens", "6", "--temperature", "0")
    plain = run(*ask, text="The capital of France is")
    answer = json.loads(run(*ask, "--json", text="The capital of France is").stdout)
    assert plain.returncode == 0
    assert plain.stdout.rstrip("\n") == answer["text"].rstrip("\n")
    assert answer["finish_reason"] == "length"
    assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"] == 6
    assert {"load_s", "ttft_s", "e2e_s"} <= set(answer["timings"])
    seeded = ("generate", str(smollm2_path), "Once", "--max-tokens", "6", "--seed", "7", "--json")
    first, second = (json.loads(run(*seeded).stdout) for _ in range(2))
    assert first["token_ids"] == second["token_ids"]
    assert first["seed"] == 7


def test_generate_refuses_in_one_line(smollm2_path: Path) -> None:
    wrong = run("generate", str(smollm2_path), "x", "--temperature", "-1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("headrace: temperature must be in [0, 100]")
    assert wrong.stderr.count("\n") == 1


def test_chat_keeps_the_conversation(smollm2_path: Path) -> None:
    talk = run("chat", str(smollm2_path), "--max-tokens", "4", "--temperature", "0", text="Hi\nAnd then?\n\n")
    assert talk.returncode == 0
    assert talk.stdout.count("> ") >= 3
    assert "Traceback" not in talk.stderr


def test_a_flag_spelled_as_its_setting_is_told_how_it_is_spelled() -> None:
    for wrong in ("--kv-pool-bytes", "--pool-bytes=5", "--kv.pool_bytes"):
        told = run("serve", "x", wrong, "5")
        assert told.returncode == 2
        name = wrong.partition("=")[0]
        assert f"{name}: the setting kv.pool_bytes is --kv-cache-memory-bytes" in told.stderr
    plain = run("serve", "x", "--no-such-flag")
    assert "the setting" not in plain.stderr


def test_inspect_reads_headers_only(smollm2_path: Path) -> None:
    facts = json.loads(run("inspect", str(smollm2_path), "--json").stdout)
    each = facts["spec"]["kv_bytes_per_token"]
    assert each["f16"] == 30 * 2 * 3 * 64 * 2
    assert each["f32"] == 2 * each["f16"]
    assert each["f16"] < each["int16"] < 1.02 * each["f16"]  # scales besides
    assert each["int8"] < 0.54 * each["f16"]
    assert facts["parameters"] == 134_515_008
    assert sum(facts["bytes_by_type"].values()) < facts["file_bytes"]
    assert facts["tokenizer"]["vocab_size"] == 49152


@pytest.mark.parametrize("is_loading", [False, True])
def test_a_taken_port_is_refused_before_any_process_starts(monkeypatch, is_loading: bool) -> None:
    monkeypatch.setattr(
        "headrace.engine.process.spawn.spawn", lambda *_: pytest.fail("an engine process was started")
    )
    with bind(ServeConfig(port=0)) as taken:
        if not is_loading:
            listen(taken)
        port = taken.getsockname()[1]
        monkeypatch.setenv("HEADRACE_SERVE_PORT", str(port))
        given = dict.fromkeys(inspect.signature(serve_command).parameters) | {"check": False}
        began_s = time.monotonic()
        with pytest.raises(AddressTakenError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another"):
            serve_command(**given)
        assert time.monotonic() - began_s < 0.5


def test_check_prints_settings_with_reasons_and_exits(smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("schedule: {max_num_seqs: 3}\n")
    shown = run("serve", str(smollm2_path), "--check", "--config", str(file), "--max-model-len", "256")
    assert shown.returncode == 0
    line = next(row for row in shown.stdout.splitlines() if row.startswith("schedule.max_num_seqs"))
    assert f"3 (file {file})" in line
    assert "--max-model-len" in shown.stdout
    for info in all_settings():  # OP-8: asked, effective, why, of every one
        assert info.section == "model" or f"{info.section}.{info.name} " in shown.stdout
    secret = run("serve", str(smollm2_path), "--check", "--api-key", "geheim", "--api-key", "auch-geheim")
    assert "geheim" not in secret.stdout + secret.stderr
    assert "2 keys" in secret.stdout
    for wrong in (["--keys-file", "/nowhere"], ["--drain-s", "-1"], ["--stall-s", "0"], ["--port", "70000"]):
        refused = run("serve", str(smollm2_path), "--check", *wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "Traceback" not in refused.stderr
    impossible = run("serve", str(smollm2_path), "--check", "--max-model-len", "999999")
    assert impossible.returncode == 2
    assert "Traceback" not in impossible.stderr


def test_a_taken_port_fails_at_once(smollm2_path: Path) -> None:
    with serving(smollm2_path, "--max-num-seqs", "1") as live:
        taken = run("serve", str(smollm2_path), "--port", live.url.rpartition(":")[2])
        assert taken.returncode == 1
        assert "cannot listen" in taken.stderr
        tasks = Path(f"/proc/{live.process.pid}/task").glob("*/children")
        children = [child for task in tasks for child in task.read_text().split()]
        assert children
        live.process.send_signal(signal.SIGKILL)
        end = time.monotonic() + 5
        while any(_alive(child) for child in children):
            assert time.monotonic() < end, "the engine process outlived its server"
            time.sleep(0.05)


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
