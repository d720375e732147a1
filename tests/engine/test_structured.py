"""Answers under a grammar: in process, over the wire, refused, aborted, beside others."""

import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig, ServeConfig
from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar
from headrace.base.messages import AddGroup
from headrace.base.request import Request, SamplingParams
from headrace.engine.build import build_core, open_model
from headrace.engine.client import LocalClient
from headrace.engine.llm import LLM
from headrace.engine.process.ipc import KINDS, decode, encode
from tests.kit.engine import END, GRAMMARS, Drive, rig, tiny_text
from tests.kit.schemas import UNSUPPORTED, answers, random_schema, verdict
from tests.kit.scripted import scripted_checkpoint, text_of

BYTE_END = 262
"""The end token of the scripted model's vocabulary."""


def scripted_config(transitions: dict[int, int], **serve) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(scripted_checkpoint(transitions))),
        device=DeviceConfig(threads=1),
        kv=KVConfig(num_blocks=64),
        serve=ServeConfig(**serve),
    )


def scripted(transitions: dict[int, int]) -> LLM:
    opened = replace(open_model(scripted_config(transitions), with_text=False), text=text_of())
    return LLM.over(opened, LocalClient(build_core(opened, text=text_of), {}))


def ask(grammar: Grammar, **more) -> Request:
    sampling = SamplingParams(structured=grammar, **{"seed": 1, "max_tokens": 40, **more})
    return Request(request_id="x", prompt_ids=(5, 6, 7), sampling=sampling, end_ids=frozenset({END}))  # type: ignore[arg-type]


def spelled(tokens) -> str:
    return b"".join(tiny_text().tokenizer.token_bytes(t) for t in tokens).decode()  # type: ignore[union-attr]


def test_a_grammar_survives_the_wire():
    group = AddGroup(requests=(ask(GRAMMARS[4]),))
    frame = encode(group)
    assert decode(KINDS.index(AddGroup), frame[5:]) == group


@pytest.mark.parametrize("seed", range(8))
def test_answers_match_and_end(seed):
    life = rig().solo(ask(Grammar.regex("[a-f]{3,5}|[0-9]{2}"), seed=seed))
    assert life.finish is not None
    assert life.finish.value == "stop"
    assert re.fullmatch("[a-f]{3,5}|[0-9]{2}", spelled(life.tokens))
    assert life.tokens[-1] == END


def test_the_cut_of_max_tokens_is_told():
    life = rig().solo(ask(Grammar.regex("[a-c]{30}"), max_tokens=4))
    assert life.finish is not None
    assert life.finish.value == "length"
    assert len(life.tokens) == 4


def test_log_probabilities_are_those_of_the_raw_model():
    free = Drive(rig().core()).run(
        [replace(ask(GRAMMARS[0], logprobs=3), sampling=SamplingParams(seed=1, logprobs=3))]
    )
    bound = Drive(rig().core()).run([ask(GRAMMARS[0], logprobs=3)])
    assert free["x"].logprobs[0].top_logprobs == bound["x"].logprobs[0].top_logprobs


def test_bans_and_lists_go_together_with_a_grammar():
    only_a = rig().solo(ask(Grammar.regex("[a-f]{4}"), allowed_token_ids=(3, END)))
    assert spelled(only_a.tokens) == "aaaa"
    no_b = rig().solo(ask(Grammar.regex("[ab]{6}"), bad_words_ids=((4,), (3, 3), (tiny_id("ab"),))))
    assert no_b.error is not None
    assert "no token may be drawn" in no_b.error
    held = rig().solo(ask(Grammar.regex("a{1,20}"), min_tokens=9))
    assert len(held.tokens) >= 9
    stuck = rig().solo(ask(Grammar.regex("a{2}"), min_tokens=9))
    assert stuck.error is not None


def tiny_id(piece: str) -> int:
    tokenizer = tiny_text().tokenizer
    assert tokenizer is not None
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == piece.encode())


def test_a_model_that_prefers_white_space_ends():
    """AP-6: between the parts of JSON there is a bounded number of spaces."""
    space = 32
    with scripted(dict.fromkeys(range(320), space)) as llm:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        params = SamplingParams(temperature=0.0, max_tokens=230, structured=Grammar.json(schema))
        (answer,) = llm.generate([[65]], params)
        assert answer.finish_reason == "stop"
        assert json.loads(answer.text) == {"a": 0}
        assert " " in answer.text
        assert "  " not in answer.text


def test_a_bad_grammar_fails_its_request_and_nothing_else():
    with scripted({}) as llm:
        good = SamplingParams(temperature=0.0, max_tokens=5, structured=Grammar.regex("x{3}"))
        for bad in (
            Grammar.regex("(a"),
            Grammar.regex("*a"),
            Grammar.json({"type": 5}),
            Grammar.lark("start: nothing"),
        ):
            with pytest.raises(RequestError, match="cannot be used") as caught:
                llm.generate([[65]], replace(good, structured=bad))
            assert caught.value.param == "structured_outputs"
        assert llm.generate([[65]], good)[0].text == "xxx"


def test_choices_of_one_request_are_independent():
    with scripted({}) as llm:
        params = SamplingParams(
            temperature=1.0, n=5, seed=3, max_tokens=8, structured=Grammar.regex("[a-z]{4}")
        )
        (answer,) = llm.generate([[65]], params)
        assert all(re.fullmatch("[a-z]{4}", c.text) for c in answer.choices)
        assert len({c.text for c in answer.choices}) > 1


@pytest.mark.slow
def test_random_schemas_hold_at_temperature_one():
    rng = random.Random(3)
    drawn = [random_schema(rng) for _ in range(40)]
    with LLM("smollm2:135m", max_model_len=2048) as llm:
        told = [verdict(s, a) for s, a in zip(drawn, answers(llm, drawn), strict=True) if a is not None]
        refused = answers(llm, [*UNSUPPORTED])
    assert Counter(told) == {"valid": 40}
    assert refused == [None] * len(UNSUPPORTED)
