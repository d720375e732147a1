"""The short ways of the scheduler for one decoded token do what the general ones do."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import BlockId, RequestId, SlotId
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.step import Row, RowResult, TokenLogprobs
from headrace.host.kv.table import Grant
from headrace.host.sched import outcome
from headrace.host.sched.batch import Batch
from headrace.host.sched.sequence import Sequence
from headrace.host.timeline.times import Times

PROMPT, END = (1, 2, 3), 9


def sequence(drawn: int, **sampling: Any) -> Sequence:
    """A sequence with a slot that has drawn `drawn` tokens; nothing of it asks for keys, rank or account."""
    request = Request(
        request_id=RequestId("r"),
        prompt_ids=PROMPT,
        sampling=SamplingParams(**sampling),
        end_ids=frozenset({END}),
    )
    unused: Any = SimpleNamespace()
    seq = Sequence(request, unused, unused, 0.0, unused)
    seq.slot, seq.lease = SlotId(0), 7
    seq.tokens.extend([4] * drawn)
    seq.num_computed = seq.num_valid = len(seq.tokens) - 1
    seq.life.cached_tokens, seq.life.num_preempted = 2, 1
    return seq


def state(seq: Sequence) -> dict[str, Any]:
    known = {
        name: getattr(seq, name) for name in Sequence.__slots__ if name not in {"chain", "rank", "account"}
    }
    return known | {"times": {name: getattr(seq.times, name) for name in Times.__slots__}}


@pytest.mark.parametrize(
    ("drawn", "token", "min_tokens", "max_tokens"),
    list(product((0, 1, 2, 3), (4, END), (0, 1, 2), (2, 3, 4))),
)
def test_one_token_ends_a_sequence_as_many_do(monkeypatch, drawn, token, min_tokens, max_tokens):
    result = RowResult(
        SlotId(0), 7, (token,), (TokenLogprobs(token_id=token, logprob=-1.0, rank=1),), num_drafts=2
    )
    found = []
    for is_short in (True, False):
        if not is_short:
            monkeypatch.setattr(
                outcome, "_accept_one", lambda *_: pytest.fail("the general way was to be taken")
            )
            # log-probabilities of the prompt that nobody asked for are dropped, but take the general way
            result = result._replace(prompt_logprobs=(TokenLogprobs(token_id=1, logprob=-1.0, rank=1),))
        seq = sequence(drawn, min_tokens=min_tokens, max_tokens=max_tokens)
        seq.pending = 1
        row = Row(slot=SlotId(0), lease=7, start=len(seq.tokens) - 1, count=1)
        seq.num_computed = row.start + 1
        news = outcome.accept(seq, row, result)
        found.append((news, state(seq) | {"life": repr(seq.life), "request": None}))
    assert found[0] == found[1]
    is_stop = token == END and drawn >= min_tokens
    last = FinishReason.LENGTH if drawn + 1 >= max_tokens else None
    assert found[0][0][1] == (FinishReason.STOP if is_stop else last)


@pytest.mark.parametrize("wanted", [None, 1])
@pytest.mark.parametrize("known", [0, len(PROMPT) - 1])
@pytest.mark.parametrize("drawn", [1, 3])
def test_planning_one_token_equals_planning_many(drawn, known, wanted):
    grant = Grant(new_blocks=(BlockId(5),), swapped=((0, BlockId(6)),))
    found = []
    for is_short in (True, False):
        seq = sequence(drawn, max_tokens=8, prompt_logprobs=wanted)
        seq.num_prompt_logprobs = known
        batch = Batch(step=1, left=10)
        if is_short:
            batch.add_decode(seq, grant)
        else:
            batch.add(seq, 1, grant)
        found.append((batch.plan(()), batch.left, batch.num_decodes, batch.prefill_tokens, batch.owners))
        found[-1] += (state(seq) | {"life": repr(seq.life), "request": None},)
    assert found[0] == found[1]
