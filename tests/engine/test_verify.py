"""`headrace verify`: every case is exact on a real model, and a case that changes the function is caught."""

import json
from dataclasses import replace

import pytest

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig
from headrace.base.errors import ConfigError
from headrace.base.step import TokenLogprobs
from headrace.cli.main import main
from headrace.tools.verify import verifying as module
from headrace.tools.verify.prompts import BUILT_IN, read_prompts
from headrace.tools.verify.verifying import Verifying, differences

PROMPTS = (BUILT_IN[0], BUILT_IN[1], BUILT_IN[4], BUILT_IN[5])


@pytest.fixture(scope="module")
def verifying(smollm2_path):
    config = EngineConfig(
        model=ModelConfig(model=str(smollm2_path), max_model_len=512),
        device=DeviceConfig(threads=2),
        kv=KVConfig(pool_bytes=64 << 20),
    )
    return Verifying(config, PROMPTS, 24)


def test_every_case_is_exact_and_did_what_it_is_about(verifying):
    verdicts = {verdict.case: verdict for verdict in verifying.run()}
    assert {"again", "batch", "chunks", "cache", "preempted", "threads", "unfused"} <= set(verdicts)
    for verdict in verdicts.values():
        assert (verdict.outcome, verdict.error) == ("exact", ""), verdict
        assert (verdict.requests, verdict.tokens) == (4, 4 * 24)
    assert "preemptions" in verdicts["preempted"].exercise
    assert "drafts checked" in verdicts["speculated"].exercise
    assert "2 prompts cut" in verdicts["chunks"].exercise


def test_a_case_that_changes_the_function_is_caught(verifying, monkeypatch):
    case = next(case for case in verifying.cases if case.name == "batch")
    other = replace(case, overrides={"kv": {"dtype": "int8"}})
    monkeypatch.setattr(verifying, "cases", (other,))
    (verdict,) = verifying.run()
    assert verdict.outcome == "differs"
    first = verdict.differences[0]
    assert first.wanted != first.got


def test_a_case_in_which_nothing_happens_proves_nothing(verifying, monkeypatch):
    case = next(case for case in verifying.cases if case.name == "batch")
    monkeypatch.setattr(verifying, "cases", (replace(case, exercise=lambda seen: ""),))
    (verdict,) = verifying.run()
    assert verdict.outcome == "not exercised"


def test_a_case_that_cannot_run_says_why(verifying, monkeypatch):
    case = next(case for case in verifying.cases if case.name == "batch")
    broken = replace(case, overrides={"kv": {"num_blocks": 1}})
    monkeypatch.setattr(verifying, "cases", (broken,))
    (verdict,) = verifying.run()
    assert verdict.outcome == "failed"
    assert verdict.error


def test_an_unknown_case_is_refused_with_the_known_ones(verifying):
    with pytest.raises(ConfigError, match="again, batch"):
        list(verifying.run(["magic"]))


def answer(*pairs, finish="length"):
    logprobs = tuple(TokenLogprobs(token_id=t, logprob=p, rank=1) for t, p in pairs)
    return module._Answer(tuple(t for t, _ in pairs), logprobs, finish)


def test_the_first_difference_is_named():
    same = answer((1, -0.5), (2, -0.25))
    assert list(differences([same], [same])) == []
    (found,) = differences([same, same], [same, answer((1, -0.5), (2, -0.25000001))])
    assert (found.prompt, found.token) == (1, 1)
    assert "-0.25000001" in found.got
    (found,) = differences([same], [answer((1, -0.5))])
    assert (found.token, found.got) == (1, "the end (length)")
    (found,) = differences([same], [replace(same, finish_reason="stop")])
    assert found.got == "the end (stop)"


def test_prompts_of_a_file(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n"two"\n\nthree {\n{not json\n')
    assert read_prompts(file) == ("one", "two", "three {", "{not json")
    file.write_text('{"text": "x"}\n')
    with pytest.raises(ConfigError, match="line 1"):
        read_prompts(file)
    file.write_text("")
    with pytest.raises(ConfigError, match="0 prompts"):
        read_prompts(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "none")


def test_the_command_tells_the_truth_by_its_status(smollm2_path, tmp_path, capsys, monkeypatch):
    file = tmp_path / "p.txt"
    file.write_text("Hello\n")
    words = ["verify", str(smollm2_path), "--prompts", str(file), "--max-tokens", "4", "--case", "again"]
    words += ["--max-model-len", "128", "--kv-cache-memory-bytes", str(32 << 20)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["exact"], report["cases"][0]["outcome"]) == (0, True, "exact")
    monkeypatch.setattr(module, "_alone", _counting(module._alone))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    assert "NOT exact" in capsys.readouterr().out


def _counting(plain):
    """Answers that change from call to call."""
    calls = []

    def run(*given):
        calls.append(1)
        return [replace(one, finish_reason=str(len(calls))) for one in plain(*given)]

    return run
