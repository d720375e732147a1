"""Every proposer at every depth from 1 to 8: the answers are those of plain solo runs, whatever else happens.

The random suites beside this one go further, and by chance; here each pair meets everything at once, and
what it is to meet is counted: preemption, cached prefixes, several choices, a grammar, accepted and refused
drafts.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from headrace.base.ids import RequestId
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.tasks import SOURCES
from headrace.compute.sampling.seeds import choice_seed
from headrace.compute.spec import chain
from headrace.compute.spec.proposer import PROPOSERS
from tests.engine.test_draft_model import changed_rig
from tests.engine.test_mixed_drafts import dice, of_method
from tests.kit.engine import END, GRAMMARS, VOCAB, Drive, Rig, rig
from tests.kit.heads import counting, random_eagle, random_medusa, scripted_eagle, scripted_medusa

LOOKUPS = PROPOSERS.names()
"""Which draft no more than twice what matches."""
KINDS = (*LOOKUPS, *SOURCES)
DEPTHS = range(1, 9)
BOTH = ("auto,draft", "auto,early-exit", "ngram,medusa", "suffix,eagle")
"""A lookup beside one that computes."""


def setting(kind: str, source: object, depth: int) -> str:
    """What `--speculate` takes."""
    return f"{kind},depth={depth}" if kind in LOOKUPS else f"{kind}={source},depth={depth}"


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory):
    """What drafts for the tiny llama: sometimes right, mostly wrong."""
    folder = tmp_path_factory.mktemp("chance")
    return {
        "draft": "x",
        "early-exit": 1,
        "medusa": random_medusa(folder / "m", 32, VOCAB),
        "eagle": random_eagle(folder / "e", 32, VOCAB),
    }


@pytest.fixture(scope="module")
def knowing(tmp_path_factory):
    """What drafts for the target that counts: always right."""
    folder, (_, table) = tmp_path_factory.mktemp("knowing"), counting()
    return {
        "draft": "x",
        "early-exit": 1,
        "medusa": scripted_medusa(folder / "m", table, 8),
        "eagle": scripted_eagle(folder / "e", table),
    }


@pytest.fixture(scope="module")
def counter() -> Rig:
    return Rig(counting()[0], "native", 1, 256)


REPEATING = (*range(3, 12),) * 3
SAMPLING = {
    "several": {"temperature": 0.8, "repetition_penalty": 0.7, "logprobs": 2},
    "held": {"temperature": 1.0, "structured": GRAMMARS[1], "logprobs": 1},
    "bound": {"temperature": 1.4, "top_p": 0.9, "bad_words_ids": ((7, 8), (9,)), "frequency_penalty": 0.3},
    "greedy": {"temperature": 0.0, "repetition_penalty": 0.6, "logprobs": 0, "prompt_logprobs": 1},
    "again": {"temperature": 0.0, "repetition_penalty": 0.6, "min_tokens": 9, "logprobs": 1},
}


def requests() -> list[Request]:
    """With several choices of the first; the last one, which comes later, begins as the one before it."""
    found = []
    for i, (name, options) in enumerate(SAMPLING.items()):
        params = SamplingParams(seed=i, max_tokens=40, **options)
        own = (*range(20, 20 + i),) if name not in ("greedy", "again") else ()
        first = Request(
            request_id=RequestId(name),
            prompt_ids=(*own, *REPEATING),
            sampling=params,
            end_ids=frozenset({END}),
        )
        found.append(first)
        if name == "several":
            for k in (1, 2):
                sampling = replace(params, seed=choice_seed(i, k))
                found.append(
                    replace(
                        first, request_id=RequestId(f"{name}.{k}"), leader=first.request_id, sampling=sampling
                    )
                )
    return found


@cache
def wanted(dtype: str) -> dict[str, tuple]:
    """What the requests answer alone, without drafts."""
    return {request.request_id: rig("native", 1).solo(request, dtype).answer for request in requests()}


@pytest.mark.parametrize(("kind", "depth"), [*product(KINDS, DEPTHS), *product(BOTH, (1, 4, 8))], ids=str)
def test_each_proposer_at_each_depth_gives_plain_solo_answers(by_chance, kind, depth):
    """SP-1, SP-10, SA-7: 5 and more drafts reach beyond what is left of an answer, too."""
    subject, dtype = rig("native", 1), ("f32", "int8", "f16", "int16")[depth % 4]
    late = kind.rpartition(",")[2]
    core = subject.core(
        changed_rig("near", 0.02) if late == "draft" else None,
        block_size=8,
        num_blocks=16,
        slots=4,
        budget=33,
        dtype=dtype,
        speculate=setting(kind, by_chance.get(late), depth),
    )
    if kind in BOTH:
        dice(depth)(core)
    rows, run = [], core.runner.run
    core.runner.run = lambda plan: (rows.extend(plan.rows), run(plan))[1]
    *asked, again = requests()
    lives = Drive(core).run(asked)
    assert sum(life.preempted for life in lives.values()) > 0
    lives |= Drive(core).run([again])
    assert lives["again"].cached >= 16
    assert {name: life.answer for name, life in lives.items()} == wanted(dtype)
    assert max(row.num_drafts for row in rows) == depth
    counts = core.stats().counters
    assert counts["drafts_checked"] > counts["drafts_accepted"] > 0
    if kind in BOTH:
        assert 0 < of_method(counts, late)[0] < counts["drafts_checked"]


def engine(knowing, counter, kind, depth):
    """The target that counts, and what knows it."""
    draft = counter if kind == "draft" else None
    speculate = setting(kind, knowing.get(kind), depth)
    return counter.core(draft, num_blocks=64, dtype="f32", speculate=speculate)


def count_from_5(name, *ends, **sampling):
    params = SamplingParams(temperature=0.0, seed=0, **sampling)
    return Request(request_id=RequestId(name), prompt_ids=COUNTED, sampling=params, end_ids=frozenset(ends))


COUNTED = (*range(3, 60), 3, 4)
"""A prompt that holds what is said: lookups are right too."""


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_within_an_accepted_run_ends_there(knowing, counter, kind, depth):
    """Every place of a run of drafts is that of the end once."""
    core = engine(knowing, counter, kind, depth)
    for end in range(12, 12 + depth + 1):
        asked = count_from_5(f"r{end}", end, max_tokens=40, logprobs=1)
        life = Drive(core).run([asked])[asked.request_id]
        assert life.tokens == list(range(5, end + 1))
        assert life.finish is FinishReason.STOP
        assert life.answer == counter.solo(asked).answer
    assert core.stats().counters["drafts_accepted"] > 0


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_min_tokens_hold_an_end_back_that_all_proposers_draft(knowing, counter, kind, depth):
    """SA-7."""
    core = engine(knowing, counter, kind, depth)
    for least in (2, 3, 10):  # the third token is the end
        asked = count_from_5(f"r{least}", 7, max_tokens=14, min_tokens=least, logprobs=1)
        life = Drive(core).run([asked])[asked.request_id]
        assert life.answer == counter.solo(asked).answer
        assert (len(life.tokens) == 3) == (least == 2)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_proposer_that_knows_the_target_is_right_up_to_its_limit(knowing, counter, kind, depth):
    """SP-3: all drafts of all proposers are accepted, and none is made beyond the last token."""
    core = engine(knowing, counter, kind, depth)
    life = Drive(core).run([count_from_5("r", max_tokens=33)])["r"]
    assert life.tokens == list(range(5, 38))
    assert life.finish is FinishReason.LENGTH
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] == 33 - counts["steps"]
    if kind not in LOOKUPS:
        is_reading = kind == "draft"  # for a step, in which nothing is checked
        assert counts["steps"] == 1 + is_reading + -(-(32 - is_reading) // (depth + 1))


class Shifted(chain.Inputs):
    """The drafter is fed the token before."""

    def gather(self, pieces):
        context = super().gather(pieces)
        slots = np.repeat([piece.slot for piece in pieces], [piece.count for piece in pieces])
        context.token_ids[:] = self._state.tokens[slots, np.maximum(context.positions - 1, 0)]
        return context


@pytest.mark.parametrize("kind", ["draft", "early-exit"])
def test_a_drafter_that_is_fed_the_token_before_changes_no_answer_and_is_never_right(
    knowing, counter, kind, monkeypatch
):
    """SP-8, SP-10: of heads `test_heads.py` says the same."""
    monkeypatch.setattr(chain, "Inputs", Shifted)
    core = engine(knowing, counter, kind, 4)
    assert Drive(core).run([count_from_5("r", max_tokens=33)])["r"].tokens == list(range(5, 38))
    counts = core.stats().counters
    assert counts["drafts_accepted"] == 0 < counts["drafts_checked"]
