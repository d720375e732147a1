"""The README's examples are run as they stand."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(".venv/bin/headrace")]


def headrace(arguments: list[str]) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_there_are_examples():
    assert len(blocks("python")) >= 1
    assert {"generate", "models", "inspect"} <= {c[1] for c in commands()}


def test_python_examples_run(smollm2_path):
    for block in blocks("python"):
        run = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        assert "Paris" in run.stdout


@pytest.mark.parametrize("command", ["generate", "models", "inspect"])
def test_commands_run(command, smollm2_path):
    for arguments in (c[1:] for c in commands() if c[1] == command):
        out = headrace(arguments)
        assert "smollm2" in out.lower() or "Paris" in out


def test_the_generate_example_prints_the_promised_object(smollm2_path):
    (arguments,) = [c[1:] for c in commands() if c[1] == "generate"]
    answer = json.loads(headrace(arguments))
    assert set(answer) >= {"text", "token_ids", "finish_reason", "usage", "timings"}
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    assert "Paris" in answer["text"]
