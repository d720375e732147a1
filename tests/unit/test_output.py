"""From deltas to text: stop strings, end tokens, finish reasons, usage, errors; one finish per choice."""

import itertools

import pytest

from headrace.base.errors import EngineDeadError, NumericError
from headrace.base.metrics.drafts import DraftReason, DraftReport
from headrace.base.request import FinishReason, SamplingParams
from headrace.base.step import Delta, SequenceTiming, TokenLogprobs
from headrace.engine.intake import Ask, Intake
from headrace.engine.output import Answer
from tests.kit.scripted import text_of

TEXT = text_of()
END = 262


def ids_of(text: str) -> list[int]:
    return list(text.encode())


class Reader:
    """Feeds an answer as an engine would, which obeys requests to stop one step later."""

    def __init__(self, prompt="Hi", **params) -> None:
        intake = Intake(TEXT, 320, 4000, 0)
        self.prepared = intake.prepare(
            Ask(prompt=prompt, params=SamplingParams(**{"seed": 1, "max_tokens": 3000, **params}))
        )
        self.answer = Answer(self.prepared, TEXT)
        self.outputs = []
        self.stops = []

    def give(self, ids=(), choice=0, **more) -> None:
        name = self.prepared.requests[choice].request_id
        output, stops = self.answer.take([Delta(request_id=name, new_ids=tuple(ids), **more)])
        self.stops += stops
        if output is not None:
            self.outputs.append(output)

    def end(self, finish=FinishReason.LENGTH, choice=0, **more) -> None:
        self.give(choice=choice, finish=finish, **more)

    def choices(self, index=0):
        return [c for o in self.outputs for c in o.choices if c.index == index]

    def text(self, index=0) -> str:
        return "".join(c.text for c in self.choices(index))

    def finish(self, index=0):
        (last,) = [c for c in self.choices(index) if c.finish_reason is not None]
        assert last is self.choices(index)[-1]
        return last.finish_reason, last.stop_reason


def splits(text: str, most: int):
    """All ways to cut a text into at most `most` pieces."""
    for count in range(1, most + 1):
        for cuts in itertools.combinations(range(1, len(text)), count - 1):
            yield [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_over_every_split(include):
    """Field lesson TK-3: no prefix of a stop string leaks, however steps cut the tokens."""
    for pieces in splits("abcDEFGHIJxyz", 4):
        reader = Reader(stop=("DEFGHIJ", "DEX"), include_stop_str_in_output=include)
        for piece in pieces:
            if not reader.stops:
                reader.give(ids_of(piece))
        assert reader.stops == [reader.prepared.requests[0].request_id]
        reader.end(FinishReason.STOP)
        assert reader.text() == ("abcDEFGHIJ" if include else "abc")
        assert reader.finish() == ("stop", "DEFGHIJ")
        ids = [i for c in reader.choices() for i in c.token_ids]
        assert ids == ids_of("abcDEFGHIJ")
        assert reader.outputs[-1].usage.completion_tokens == len(ids)


def test_held_text_is_sent_at_the_end():
    reader = Reader(stop=("DEFGHIJ",))
    reader.give(ids_of("abcDEF"))
    assert reader.text() == "abc"
    reader.end()
    assert reader.text() == "abcDEF"
    assert reader.finish() == ("length", None)


def test_a_stop_string_does_not_match_across_the_prompt():
    reader = Reader(prompt="say DEF", stop=("DEFG",))
    reader.give(ids_of("GH"))
    assert reader.text() == "GH"
    assert not reader.stops


def test_stop_strings_do_not_count_before_min_tokens():
    reader = Reader(stop=("b",), min_tokens=4)
    reader.give(ids_of("abab"))
    assert reader.stops
    assert reader.text() == "aba"
    reader = Reader(stop=("b",), min_tokens=5)
    reader.give(ids_of("abab"))
    assert not reader.stops


@pytest.mark.parametrize("end", [262, 263])
def test_end_tokens_end_without_text(end):
    """Field lesson TK-2: every end token of every source, not shown, finish reason stop."""
    assert end in Reader().prepared.requests[0].end_ids
    reader = Reader(skip_special_tokens=False)
    reader.give([*ids_of("ab"), end], finish=FinishReason.STOP, stop_id=end)
    assert reader.text() == "ab"
    assert reader.finish() == ("stop", None)
    assert reader.choices()[-1].token_ids[-1] == end


def test_stop_token_ids_are_reported_and_shown_on_demand():
    for include, shown in ((False, "a"), (True, "ab")):
        reader = Reader(stop_token_ids=(98,), include_stop_str_in_output=include)
        reader.give(ids_of("ab"), finish=FinishReason.STOP, stop_id=98)
        assert reader.text() == shown
        assert reader.finish() == ("stop", 98)


def test_characters_are_never_cut():
    for pieces in splits("é🌱x", 3):
        data = list("".join(pieces).encode())
        reader = Reader()
        for byte in data:
            reader.give([byte])
        reader.end()
        assert reader.text() == "é🌱x"
    reader = Reader()
    reader.give([*ids_of("a"), 0xF0, 0x9F])
    reader.end()
    assert reader.text() == "a\ufffd"


def test_text_offsets_join():
    reader = Reader()
    for piece in ("ab", "c", "déf"):
        reader.give(ids_of(piece))
    reader.end()
    assert [c.text_offset for c in reader.choices()] == [0, 2, 3, 6]


def test_deltas_after_a_stop_string_change_nothing():
    """The engine runs on for a step; what it drew then is not part of the answer."""
    reader = Reader(stop=("b",))
    reader.give(ids_of("ab"))
    reader.give(ids_of("cde"))
    reader.give(ids_of("f"), finish=FinishReason.LENGTH)
    assert reader.text() == "a"
    assert reader.finish() == ("stop", "b")
    assert reader.outputs[-1].usage.completion_tokens == 2


def test_several_choices_finish_once_each_and_usage_is_summed():
    reader = Reader(n=3)
    reader.give(ids_of("aa"), choice=0, cached_tokens=1)
    reader.give(ids_of("bbb"), choice=2, finish=FinishReason.LENGTH)
    assert not reader.outputs[-1].finished
    reader.end(choice=0)
    reader.give([98], choice=1, finish=FinishReason.ABORT)
    assert reader.outputs[-1].finished
    assert [reader.finish(i)[0] for i in range(3)] == ["length", "abort", "length"]
    usage = reader.outputs[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, 6, 1)


def test_an_error_ends_the_request_and_its_siblings():
    reader = Reader(n=2)
    reader.give(ids_of("a"), choice=1)
    reader.give(choice=0, finish=FinishReason.ERROR, error="NaN logits")
    assert isinstance(reader.outputs[-1].error, NumericError)
    assert reader.outputs[-1].finished
    assert {reader.finish(0)[0], reader.finish(1)[0]} == {"error"}
    before = len(reader.outputs)
    reader.give(ids_of("b"), choice=1)
    assert len(reader.outputs) == before


def test_a_dead_engine_ends_the_request_once():
    reader = Reader()
    reader.give(ids_of("a"))
    output = reader.answer.fail(EngineDeadError("gone"))
    assert output.finished
    assert output.choices[0].finish_reason == "error"
    assert reader.answer.fail(EngineDeadError("gone")) is None


def test_prompt_logprobs_come_once_and_whole():
    reader = Reader(prompt=[72, 105, 33, 34], prompt_logprobs=0)
    entries = [TokenLogprobs(token_id=i, logprob=-1.0, rank=1) for i in (105, 33, 34)]
    reader.give(prompt_logprobs=tuple(entries[:2]))
    assert not reader.outputs
    reader.give(ids_of("a"), prompt_logprobs=tuple(entries[2:]))
    assert reader.outputs[0].prompt_logprobs == (None, *entries)
    reader.end()
    assert reader.outputs[-1].prompt_logprobs is None


def test_reports_of_drafts_are_added_up_over_choices():
    reader, why = Reader(n=2), DraftReason
    one = DraftReport(
        rows_by_reason=((why.FIXED, 3), (why.NO_ROOM, 1)), num_rows=3, accepted_by_place=(3, 1), depth=2
    )
    other = DraftReport(rows_by_reason=((why.NO_ROOM, 4), (why.FIXED, 1)), num_rows=1, accepted_by_place=(1,))
    moments = dict.fromkeys(("arrival_s", "first_scheduled_s", "first_token_s", "finished_s"), 1.0)
    for report in (one, other):
        reader.end(
            choice=0 if report is one else 1,
            timing=SequenceTiming(**moments, num_steps=4, prefill_tokens=2, drafts=report),
        )
    got = reader.outputs[-1].drafts
    assert got is not None
    assert got.rows_by_reason == ((why.NO_ROOM, 5), (why.FIXED, 4))
    assert (got.num_rows, got.accepted_by_place, got.tokens_per_row) == (4, (4, 1), 2.25)
    assert got.depth == 0  # of the choice that ended last


def test_timings_come_last():
    reader = Reader()
    reader.give(ids_of("a"))
    assert reader.outputs[-1].timings is None
    timing = SequenceTiming(
        arrival_s=10.0,
        first_scheduled_s=11.0,
        first_token_s=13.0,
        finished_s=17.0,
        num_steps=5,
        prefill_tokens=2,
        waits=(("slots", 1.0),),
    )
    reader.end(timing=timing, num_preempted=2)
    got = reader.outputs[-1].timings
    assert (got["queue_s"], got["prefill_s"], got["ttft_s"], got["decode_s"], got["e2e_s"]) == (1, 2, 3, 4, 7)
    assert (got["steps"], got["preempted"], got["wait_slots_s"]) == (5, 2, 1.0)
