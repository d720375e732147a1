"""Requests against the model: ids, lengths, seeds, choices."""

from dataclasses import replace

import pytest

from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.request import SamplingParams
from headrace.base.tasks import Speculation
from headrace.base.terms import Tenant, Terms
from headrace.engine.chat.prompt import DEFAULTS
from headrace.engine.intake import Ask, Intake
from headrace.engine.text import NO_TEXT
from headrace.host.text.chat import ChatTemplate
from tests.kit.scripted import text_of

LIMIT = 20
VOCAB = 300


def prepare(prompt, intake=None, **params):
    intake = intake or Intake(text_of(), VOCAB, LIMIT, 7)
    options = {k: params.pop(k) for k in ("request_id", "salt", "priority", "terms") if k in params}
    return intake.prepare(Ask(prompt=prompt, params=SamplingParams(**params), **options))


@pytest.mark.parametrize(("asked", "got"), [(None, 1), (1, 1), (1000, 1)])
def test_a_prompt_one_below_the_limit_has_room_for_one_token(asked, got):
    """Field lesson SC-10."""
    prepared = prepare([5] * (LIMIT - 1), max_tokens=asked)
    assert prepared.requests[0].sampling.max_tokens == got


@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1, 10 * LIMIT])
@pytest.mark.parametrize("asked", [None, 1, 1000])
def test_a_prompt_at_or_over_the_limit_is_refused_with_numbers(length, asked):
    with pytest.raises(ContextLengthError, match=rf"{length} tokens.*limit is {LIMIT}"):
        prepare([5] * length, max_tokens=asked)


def test_a_long_text_is_refused_before_it_is_tokenized():
    with pytest.raises(ContextLengthError, match=f"limit is {LIMIT}"):
        prepare("x" * 10_000_000)


def test_a_token_that_the_model_has_no_row_for_is_refused():
    """Some tokenizers know more tokens than the head has rows."""
    ids = text_of().encode("hello")
    assert prepare("hello", Intake(text_of(), max(ids) + 1, LIMIT, 7)).prompt_ids == ids
    with pytest.raises(RequestError, match=f"token id {max(ids)} is not in"):
        prepare("hello", Intake(text_of(), max(ids), LIMIT, 7))


@pytest.mark.parametrize(
    "content", ["x" * 10_000, [{"type": "text", "text": "x" * 5_000}, {"type": "text", "text": "x" * 5_000}]]
)
def test_a_long_conversation_is_refused_before_it_is_rendered(content):
    with pytest.raises(ContextLengthError, match=rf"at least \d+ tokens.*limit is {LIMIT}"):
        Intake(text_of(), VOCAB, LIMIT, 7).chat([{"role": "user", "content": content}])


def test_more_words_than_the_limit_are_refused_before_their_tokens_are_taken_over(monkeypatch):
    text = replace(text_of(), chat_template=ChatTemplate("{{ messages[0].content }}", {}))
    intake, words = Intake(text, VOCAB, LIMIT, 7), "a." * LIMIT
    messages = [{"role": "user", "content": words}]
    whole, cut = (DEFAULTS.of(SamplingParams(truncate_prompt_tokens=kept)) for kept in (None, 5))
    assert len(text_of().encode(words)) // 2 == LIMIT
    limit = rf"at least \d+ tokens; the context limit is {LIMIT}"
    with monkeypatch.context() as patch:
        patch.setattr(intake, "_check_size", lambda *_: None)  # the cheap bound, which would come first
        for refused in (lambda: prepare(words, intake), lambda: intake.chat(messages, whole)):
            with pytest.raises(ContextLengthError, match=limit):
                refused()
        assert len(intake.chat(messages, cut).ids) > LIMIT
        assert len(prepare(words, intake, truncate_prompt_tokens=5).prompt_ids) == 5


@pytest.mark.parametrize(
    ("kept", "max_tokens", "left"),
    [(3, 5, 3), (40, 5, 12), (-1, 5, 12), (-1, 12, 8), (-1, None, 12), (1, 5, 1)],
)
def test_a_prompt_is_truncated_to_its_last_tokens(kept, max_tokens, left):
    ids = tuple(range(12))
    prepared = prepare(ids, truncate_prompt_tokens=kept, max_tokens=max_tokens)
    assert prepared.prompt_ids == ids[-left:]
    assert {request.prompt_ids for request in prepared.requests} == {ids[-left:]}
    text = prepare("hello world", truncate_prompt_tokens=kept, max_tokens=max_tokens)
    assert text.prompt_ids == text_of().encode("hello world")[-left:]


def test_truncation_does_not_hide_what_cannot_fit():
    assert prepare([5] * 100, truncate_prompt_tokens=-1, max_tokens=4).prompt_ids == (5,) * (LIMIT - 4)
    with pytest.raises(ContextLengthError, match=f"the prompt has {LIMIT} tokens"):
        prepare([5] * 100, truncate_prompt_tokens=LIMIT)
    with pytest.raises(ContextLengthError, match="lower max_tokens"):
        prepare([5] * 100, truncate_prompt_tokens=-1, max_tokens=LIMIT)
    with pytest.raises(ContextLengthError, match=f"limit is {LIMIT}"):
        prepare("x" * 10_000_000, truncate_prompt_tokens=3)
    for kept in (0, -2):
        with pytest.raises(RequestError, match="truncate_prompt_tokens must be -1 or at least 1"):
            prepare([5], truncate_prompt_tokens=kept)


def test_max_tokens_is_lowered_to_the_room():
    assert prepare([5] * 15, max_tokens=3).requests[0].sampling.max_tokens == 3
    assert prepare([5] * 15, max_tokens=30).requests[0].sampling.max_tokens == 5
    assert prepare([5] * 15, max_tokens=None).requests[0].sampling.max_tokens == 5
    with pytest.raises(ContextLengthError, match="min_tokens"):
        prepare([5] * 15, max_tokens=30, min_tokens=6)


def test_choices_have_own_seeds_and_one_leader():
    """Field lesson SA-3."""
    prepared = prepare([5], n=4, seed=9, prompt_logprobs=1, request_id="x", salt="s", priority=3)
    seeds = [r.sampling.seed for r in prepared.requests]
    assert prepared.seed == seeds[0] == 9
    assert len(set(seeds)) == 4
    assert seeds == [r.sampling.seed for r in prepare([5], n=4, seed=9).requests]
    assert [r.request_id for r in prepared.requests] == ["x", "x.1", "x.2", "x.3"]
    assert [r.leader for r in prepared.requests] == [None, "x", "x", "x"]
    assert [r.sampling.prompt_logprobs for r in prepared.requests] == [1, None, None, None]
    assert {(r.sampling.n, r.salt, r.priority) for r in prepared.requests} == {(1, "s", 3)}


def test_seeds_are_derived_from_the_engines_and_differ():
    def three(seed):
        intake = Intake(text_of(), VOCAB, LIMIT, seed)
        return [prepare([5], intake).seed for _ in range(3)]

    assert three(7) == three(7)
    assert len({*three(7), *three(8)}) == 6


def test_end_ids():
    """Field lesson TK-2: the union of all sources."""
    assert prepare([5], stop_token_ids=(9,)).requests[0].end_ids == {9, 262, 263}
    assert prepare([5], stop_token_ids=(9,), ignore_eos=True).requests[0].end_ids == {9}


def test_bad_words_are_tokenized_with_and_without_a_space():
    words = prepare([5], bad_words=("hello",), bad_words_ids=((3, 4),)).requests[0].sampling
    assert words.bad_words == ()
    assert (3, 4) in words.bad_words_ids
    assert len(words.bad_words_ids) == 3


def test_bad_words_beyond_the_limit_are_refused_not_cut():
    few = prepare([5], bad_words=tuple(f"w{i}" for i in range(512))).requests[0].sampling
    assert len(few.bad_words_ids) == 1024
    with pytest.raises(RequestError, match=r"1026 token sequences.*limit 1024"):
        prepare([5], bad_words=tuple(f"w{i}" for i in range(513)))


@pytest.mark.parametrize(
    "bans",
    [
        {"bad_words_ids": ((5,), (6,))},
        {"bad_words_ids": ((5,),), "stop_token_ids": (6,), "min_tokens": 1},
        {"stop_token_ids": (5, 6), "min_tokens": 2},
    ],
)
def test_a_request_that_bans_all_it_allows_is_refused(bans):
    with pytest.raises(RequestError, match="no token to draw"):
        prepare([5], allowed_token_ids=(5, 6), **bans)
    assert prepare([5], allowed_token_ids=(5, 6, 7), **bans)


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40])
@pytest.mark.parametrize(
    "field", ["prompt", "logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words_ids"]
)
def test_ids_outside_the_vocabulary_are_refused(field, bad):
    values = {"logit_bias": ((bad, 1.0),), "bad_words_ids": ((5, bad),)}
    prompt = [5, bad] if field == "prompt" else [5]
    params = {} if field == "prompt" else {field: values.get(field, (bad,))}
    with pytest.raises(RequestError, match=r"token id") as caught:
        prepare(prompt, **params)
    assert caught.value.param in {field, "bad_words"}


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ([], {}),
        ("", {}),
        ([5], {"bad_words_ids": ((),)}),
        ([5], {"request_id": "x" * 300}),
        ([5], {"request_id": "a\x1fb"}),
        ([5], {"priority": 2**31}),
        ([5], {"priority": -(2**63) - 1}),
        ([5], {"bad_words": ("",)}),
        ([5], {"bad_words": ("x" * 257,)}),
        ([True], {}),
        ([1.5], {}),
    ],
)
def test_other_nonsense_is_refused(prompt, params):
    with pytest.raises(RequestError):
        prepare(prompt, **params)


def test_names_and_salts_that_utf_8_cannot_write_are_refused():
    """In process they would come as far as the key of the first block, or the timeline of the answer."""
    for half in (0xD800, 0xDBFF, 0xDC00, 0xDFFF):
        with pytest.raises(RequestError, match=rf"UTF-8 cannot write: 'a\\u{half:x}b'; leave it") as caught:
            prepare([5], request_id=f"a{chr(half)}b")
        assert caught.value.param == "request_id"
        with pytest.raises(RequestError, match="UTF-8 cannot write") as caught:
            prepare([5], salt=f"a{chr(half)}b")
        assert caught.value.param == "cache_salt"
        with pytest.raises(RequestError, match=rf"tenant has half .*'a\\u{half:x}b'; leave it") as caught:
            prepare([5], terms=Terms(tenant=Tenant(name=f"a{chr(half)}b")))
        assert caught.value.param == "tenant"
    for name in ("\ud7ff\ue000", "wörld\U0001f600"):
        prepared = prepare([5], request_id=name, salt=name, terms=Terms(tenant=Tenant(name=name)))
        assert (prepared.request_id, prepared.requests[0].salt, prepared.tenant) == (name, name, name)


def test_a_model_without_tokenizer_takes_ids_only():
    intake = Intake(NO_TEXT, VOCAB, LIMIT, 0)
    assert prepare([5, 6], intake).prompt_ids == (5, 6)
    with pytest.raises(RequestError, match="token ids"):
        prepare("text", intake)
    with pytest.raises(RequestError):
        intake.chat([{"role": "user", "content": "hi"}])


def test_special_tokens_in_raw_prompts_are_read_as_such():
    assert prepare("<|im_start|>a").prompt_ids == (261, 97)


def test_a_request_is_drafted_only_as_the_engine_can():
    offered = Intake(text_of(), VOCAB, LIMIT, 7, Speculation.parse("ngram,depth=4"))
    for wish in ("off", "ngram", "ngram,depth=2"):
        assert prepare([5], offered, speculate=wish).requests[0].sampling.speculate == wish
    for wish, says in (("suffix", "only ngram runs here"), ("ngram,depth=5", "at most 4 here, got 5")):
        with pytest.raises(RequestError, match=says) as caught:
            prepare([5], offered, speculate=wish)
        assert caught.value.param == "speculate"
    with pytest.raises(RequestError, match="speculation is off here"):
        prepare([5], speculate="ngram")
    anything = Intake(text_of(), VOCAB, LIMIT, 7, Speculation.parse("auto"))
    for wish in ("off", "auto", "ngram", "suffix,depth=3"):
        assert prepare([5], anything, speculate=wish).requests[0].sampling.speculate == wish
    with pytest.raises(
        RequestError, match="unknown method 'foo'; known: off, auto, ngram, suffix, draft"
    ) as caught:
        prepare([5], anything, speculate="foo")
    assert caught.value.param == "speculate"
