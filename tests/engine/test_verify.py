"""`headrace verify`: every case is exact on a real model, and a case that changes the function is caught."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig, SpeculateConfig
from headrace.base.errors import ConfigError
from headrace.base.step import TokenLogprobs
from headrace.cli.main import main
from headrace.compute.runner import draws
from headrace.tools.verify import verifying as module
from headrace.tools.verify.prompts import BUILT_IN, read_prompts
from headrace.tools.verify.verifying import Verifying, differences
from tests.kit.engine import tiny_llama, write_checkpoint
from tests.kit.heads import random_eagle, random_medusa
from tests.kit.vocabs import byte_library

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


SPELLED = 265
"""Tokens of the byte vocabulary."""


def spelled(seed: int) -> Path:
    """The tiny llama with weights by the seed, and a tokenizer."""
    source = tiny_llama(seed)
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = np.random.default_rng(seed).standard_normal((SPELLED, 32)) * 0.2
        tensors[name] = rows.astype(np.float32)
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": SPELLED}
    folder = write_checkpoint(f"spelled-{seed}", config, tensors)
    byte_library().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def methods(tmp_path_factory):
    """A way of every kind, for `spelled(5)`."""
    folder = tmp_path_factory.mktemp("heads")
    return (
        f"draft={spelled(6)}",
        f"draft={spelled(5)},depth=2",
        "early-exit=1",
        f"medusa={random_medusa(folder / 'm', 32, SPELLED)}",
        f"eagle={random_eagle(folder / 'e', 32, SPELLED)}",
        f"eagle={random_eagle(folder / 'e3', 32, SPELLED, version=3)}",
    )


def tiny(*speculate: str, method: str = "off") -> Verifying:
    config = EngineConfig(
        model=ModelConfig(model=str(spelled(5))),
        device=DeviceConfig(threads=1),
        kv=KVConfig(num_blocks=64),
        speculate=SpeculateConfig(method=method),
    )
    return Verifying(config, ("Hi", "The miller opened the gate", "1, 1, 2, 3, 5"), 16, speculate)


def test_every_way_of_speculating_is_verified_as_its_own_case(methods):
    verifying = tiny(*methods, methods[0])
    names = [case.name for case in verifying.cases if case.name.startswith("speculated")]
    want = [method if "depth" in method else f"{method},depth=4" for method in methods]
    assert names == [f"speculated {method}" for method in want]
    for verdict in verifying.run(names):
        assert (verdict.outcome, verdict.error, verdict.tokens) == ("exact", "", 3 * 16), verdict
        checked, accepted = (int(part.split()[0]) for part in verdict.exercise.split(", "))
        assert checked > 0
        if "depth=2" in verdict.case:  # the model itself
            assert accepted == checked


def test_drafts_that_are_taken_on_trust_are_caught(methods, monkeypatch):
    """Tokens drawn behind a wrong draft are kept."""

    def accept(self, piece, sampled, tokens, errors, first, outcome):
        outcome.tokens.extend(tokens[first : first + piece.draws])
        wants = self._state.sampling.num_logprobs(piece.slot)
        outcome.logprobs.extend(draws.entry(sampled, first + i, wants) for i in range(piece.draws))

    verifying = tiny(methods[0])
    monkeypatch.setattr(draws.Draws, "_accept", accept)
    (verdict,) = verifying.run([verifying.cases[-1].name])
    assert verdict.outcome == "differs"


def test_the_way_of_the_settings_is_verified_and_the_other_cases_run_without():
    verifying = tiny(method="early-exit=2")
    assert [case.name for case in verifying.cases][-1] == "speculated early-exit=2,depth=4"
    assert verifying._config.speculate.method == "off"
    (verdict,) = verifying.run(["speculated early-exit=2,depth=4"])
    assert verdict.outcome == "exact"
    assert [case.name for case in tiny(method="off").cases][-1] == "speculated"
    assert [case.name for case in tiny("suffix", method="auto").cases][-1] == "speculated suffix,depth=4"


def test_a_way_that_does_not_suit_the_model_fails_with_the_reason(tmp_path):
    verifying = tiny("early-exit=3", f"medusa={random_medusa(tmp_path / 'm', 64, SPELLED)}")
    wrong = [verdict for verdict in verifying.run() if verdict.outcome != "exact"]
    wrong = [verdict for verdict in wrong if verdict.case.startswith("speculated")]
    assert [verdict.outcome for verdict in wrong] == ["failed", "failed"]
    assert "1 to 2, got '3'" in wrong[0].error
    assert "64" in wrong[1].error


@pytest.mark.parametrize(
    ("method", "message"),
    [("off", "drafts nothing"), ("magic", "must be one of"), ("draft", "draft needs draft=")],
)
def test_a_way_that_there_is_not_is_refused_before_anything_runs(method, message):
    config = EngineConfig(model=ModelConfig(model="/no/such/model"))
    with pytest.raises(ConfigError, match=message):
        Verifying(config, ("Hi",), 4, (method,))


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
