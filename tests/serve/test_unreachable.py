"""Tools that ask a server say alike that there is none."""

import pytest

from tests.serve.test_commands import run

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "x"),
        ("doctor", "--seconds", "1"),
        ("bench", "serve", "--concurrency", "1"),
        ("bench", "serve", "--concurrency", "1", "--model", "m"),
    ],
)
def test_an_unreachable_server_is_no_fault_of_the_question(words: tuple[str, ...]) -> None:
    ended = run(*words, "--url", NOWHERE)
    assert ended.returncode == 1
    assert f"headrace: no server answers at {NOWHERE} (" in ended.stderr
    assert ended.stderr.rstrip().endswith("start one with `headrace serve`, or give its address as --url")
