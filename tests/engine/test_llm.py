"""`LLM` over tiny checkpoints: lists, seeds, threads, defaults, end tokens, streams, errors."""

import gc
import itertools
import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig, KVConfig, ModelConfig
from headrace.base.errors import ConfigError, ContextLengthError, OverloadError, RequestError
from headrace.base.request import SamplingParams
from headrace.engine.build import Phases, build_core, open_model
from headrace.engine.client import LocalClient
from headrace.engine.llm import LLM
from tests.kit.engine import END, VOCAB, tiny_llama
from tests.kit.scripted import scripted_checkpoint, text_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def tokens(results) -> list:
    return [[c.token_ids for c in r.choices] for r in results]


@pytest.fixture(scope="module")
def llm():
    with LLM(str(tiny_llama()), num_blocks=256, threads=1) as made:
        yield made


def scripted(transitions: dict[int, int], **kv) -> LLM:
    config = EngineConfig(
        model=ModelConfig(model=str(scripted_checkpoint(transitions))),
        kv=KVConfig(**{"num_blocks": 64, **kv}),
    )
    opened = replace(open_model(config, with_text=False), text=text_of())
    return LLM.over(opened, LocalClient(build_core(opened), {}))


def say(text: str, *after: int, start: int = 1) -> dict[int, int]:
    """Transitions that spell a text (of distinct characters) after token `start`, then `after`."""
    chain = [start, *text.encode(), *after]
    assert len(set(chain)) == len(chain)
    return dict(itertools.pairwise(chain))


def test_sc11_results_come_in_order_and_calls_are_independent(llm):
    three, five = prompts(3, 1), prompts(5, 2)
    first, second = llm.generate(three, GREEDY), llm.generate(five, GREEDY)
    assert [r.prompt_ids for r in first] == [tuple(p) for p in three]
    with LLM(str(tiny_llama()), num_blocks=256, threads=2) as fresh:
        assert tokens(fresh.generate([*five, *three], GREEDY)) == tokens([*second, *first])


def test_one_prompt_one_result(llm):
    (result,) = llm.generate([5, 6, 7], GREEDY)
    assert result.token_ids == result.choices[0].token_ids
    assert result.usage.completion_tokens == len(result.token_ids)
    assert result.usage.prompt_tokens == 3
    assert result.timings["e2e_s"] >= result.timings["ttft_s"] >= 0


def test_sa3_seeds(llm):
    params = SamplingParams(temperature=1.5, max_tokens=12, n=4, seed=77)
    first, again = llm.generate([[5, 6, 7]] * 2, params)
    assert tokens([first]) == tokens([again])
    assert len({c.token_ids for c in first.choices}) > 1
    assert first.seed == 77
    (free,) = llm.generate([[5, 6, 7]], replace(params, seed=None))
    (repeated,) = llm.generate([[5, 6, 7]], replace(params, seed=free.seed))
    assert tokens([free]) == tokens([repeated])
    (other,) = llm.generate([[5, 6, 7]], replace(params, seed=None))
    assert other.seed != free.seed


def test_sc8_many_threads_may_call(llm):
    each = [prompts(4, seed) for seed in range(8)]
    want = [tokens(llm.generate(p, GREEDY)) for p in each]
    with ThreadPoolExecutor(8) as pool:
        assert [tokens(r) for r in pool.map(lambda p: llm.generate(p, GREEDY), each)] == want


def test_a_list_longer_than_the_queue_is_no_overload():
    with LLM(str(tiny_llama()), num_blocks=64, max_num_seqs=2, max_queued_requests=4, threads=1) as small:
        results = small.generate(prompts(40, 3), replace(GREEDY, max_tokens=2))
        assert len(results) == 40
        with pytest.raises(OverloadError) as caught:
            small.generate([5], SamplingParams(n=30, max_tokens=1))
        assert caught.value.retry_after_s > 0


def test_streams_equal_whole_answers_and_leaving_aborts(llm):
    params = replace(GREEDY, max_tokens=20, n=2, temperature=1.0, seed=4)
    (whole,) = llm.generate([[9, 8, 7]], params)
    outputs = list(llm.stream([9, 8, 7], params))
    for i, choice in enumerate(whole.choices):
        assert choice.token_ids == tuple(
            t for o in outputs for c in o.choices if c.index == i for t in c.token_ids
        )
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].usage == whole.usage
    stream = llm.stream([9, 8, 7], replace(GREEDY, max_tokens=150))
    next(stream)
    stream.close()
    llm.generate([5], replace(GREEDY, max_tokens=1))
    gauges = llm.stats().gauges
    assert gauges["running"] == gauges["waiting"] == gauges["blocks_held"] == 0


def test_sc12_what_cannot_run_is_an_error_with_a_reason(llm):
    with pytest.raises(ContextLengthError, match="192"):
        llm.generate([[5] * 300], GREEDY)
    with (
        LLM(str(tiny_llama()), num_blocks=2, threads=1) as small,
        pytest.raises(ContextLengthError, match="32"),
    ):
        small.generate([[5] * 40], GREEDY)
    with pytest.raises(RequestError, match="token ids"):
        llm.generate("text", GREEDY)
    with pytest.raises(RequestError, match="2 prompts but 1"):
        llm.generate([[5], [6]], [GREEDY])
    assert llm.generate([[5]], GREEDY)[0].finish_reason in {"stop", "length"}


def test_sa8_defaults_of_the_models_file(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama(), folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.1, "top_k": 7, "eos_token_id": [END, 9]})
    )
    with LLM(str(folder), num_blocks=8) as made:
        assert (made.defaults.temperature, made.defaults.top_k, made.defaults.top_p) == (0.1, 7, 1.0)
        (result,) = made.generate([[5]], SamplingParams(temperature=0.9, max_tokens=1))
        assert result.choices[0].token_ids
        prepared = made._frontend.intake
        assert {END, 9} <= prepared._text.end_ids
    with LLM(str(folder), num_blocks=8, generation_config="headrace") as made:
        assert made.defaults == SamplingParams()
        assert {END, 9} <= made._frontend.intake._text.end_ids


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown setting"):
        LLM(str(tiny_llama()), colour="blue")
    with pytest.raises(ConfigError, match=r"kv\.colour"):
        LLM(str(tiny_llama()), kv={"colour": 1})


@pytest.mark.parametrize("end", [262, 263])
def test_tk2_each_end_token_stops(end):
    with scripted(say("hey", end)) as made:
        (result,) = made.generate([[1]], replace(GREEDY, max_tokens=20))
    assert (result.text, result.finish_reason) == ("hey", "stop")
    assert result.token_ids[-1] == end


@pytest.mark.parametrize("include", [False, True])
def test_tk3_stop_strings_through_the_engine(include):
    with scripted(say("abcDEFGHIJxyz")) as made:
        params = replace(GREEDY, max_tokens=30, stop=("DEFGHIJ",), include_stop_str_in_output=include)
        (result,) = made.generate([[1]], params)
        streamed = "".join(c.text for o in made.stream([1], params) for c in o.choices)
        gauges = made.stats().gauges
    want = "abcDEFGHIJ" if include else "abc"
    assert (result.text, result.finish_reason, result.choices[0].stop_reason) == (want, "stop", "DEFGHIJ")
    assert streamed == want
    assert result.usage.completion_tokens == len("abcDEFGHIJ")
    assert gauges["running"] == gauges["blocks_held"] == 0


def test_sa7_min_tokens_holds_end_tokens_and_stop_strings_back():
    with scripted(say("abc", 262)) as made:
        (result,) = made.generate([[1]], replace(GREEDY, max_tokens=12, min_tokens=10))
        assert len(result.token_ids) >= 10
        assert not {262, 263} & set(result.token_ids[:9])
        (free,) = made.generate([[1]], replace(GREEDY, max_tokens=12, ignore_eos=True))
        assert len(free.token_ids) == 12


def test_ap8_finish_reasons(llm):
    with scripted(say("abc", 262)) as made:
        cases = [
            ({"max_tokens": 1}, "length"),
            ({"max_tokens": 20}, "stop"),
            ({"max_tokens": 20, "stop": ("b",)}, "stop"),
            ({"max_tokens": 20, "stop_token_ids": (98,)}, "stop"),
        ]
        for options, want in cases:
            assert made.generate([[1]], replace(GREEDY, **options))[0].finish_reason == want
    (full,) = llm.generate([[5] * 180], SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    assert (full.finish_reason, len(full.token_ids)) == ("length", 12)


def test_at5_phases_sum_to_the_start(llm):
    phases = Phases()
    began_s = now_s()
    core = build_core(open_model(EngineConfig(model=ModelConfig(model=str(tiny_llama()))), phases), phases)
    total_s = now_s() - began_s
    core.close()
    assert 0.95 * total_s - 0.003 < sum(phases.seconds.values()) <= total_s
    assert {"locate", "headers", "tokenizer", "backend", "weights", "compile"} <= set(phases.seconds)
    assert llm.phases.keys() == phases.seconds.keys()


def test_a_closed_engine_refuses(llm):
    made = LLM(str(tiny_llama()), num_blocks=8)
    made.close()
    made.close()
    with pytest.raises(Exception, match="closing"):
        made.generate([[5]], GREEDY)


def test_what_nobody_holds_any_more_is_closed():
    made = LLM(str(tiny_llama()), num_blocks=8, threads=1)
    client = made._frontend._client
    made.generate([[5]], GREEDY)
    assert client.beat() is not None
    del made
    gc.collect()
    assert client.beat() is None


def test_a_request_that_bans_all_it_allows_on_the_way_is_the_callers_error(llm):
    asked = SamplingParams(max_tokens=5, allowed_token_ids=(5,), bad_words_ids=((5, 5),))
    with pytest.raises(RequestError, match="no token may be drawn"):
        llm.generate([[7]], asked)


def test_a_program_may_end_in_the_middle_of_a_stream(smollm2_path):
    code = (
        "import sys\nfrom headrace.base.request import SamplingParams\nfrom headrace.engine.llm import LLM\n"
        "llm = LLM(sys.argv[1], threads=1, num_blocks=64)\n"
        "stream = llm.stream('hello', SamplingParams(max_tokens=500, ignore_eos=True))\n"
        "next(stream)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(smollm2_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_bar_counts_prompts_and_draws_on_terminals_only(monkeypatch):
    from headrace.engine.offline import bar, progress
    from headrace.engine.outputs import ChoiceDelta, RequestOutput

    assert type(progress.make_progress(2, shown=True)) is progress.Progress
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    made = progress.make_progress(2, shown=True)
    assert type(made) is bar.Bar
    with made:
        for finished in (False, True):
            choice = ChoiceDelta(index=0, token_ids=(1, 2))
            made.note(RequestOutput(request_id="a", prompt_ids=(1,), choices=(choice,), finished=finished))
    task = made._bar.tasks[0]
    assert (task.completed, made._tokens) == (1, 4)
    assert type(progress.make_progress(2, shown=False)) is progress.Progress
